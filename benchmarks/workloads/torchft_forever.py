"""The same training with torchft: one replica group of one process, which stays when others go.

Steps continue where they were; one that torchft does not commit is none. Where torchrun would
keep the store of a replica group, this process does: no launcher is part of what is measured.
torchft_forever.py FOLDER ADDRESS LIGHTHOUSE TIMEOUT
"""

from __future__ import annotations

import signal
import socket
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.workloads.common import STEP_SECONDS, TINY, StepLog, training


def train(log: StepLog, host: str, lighthouse: str, timeout: timedelta) -> None:
    # ruff: noqa: PLC0415  (importing torch is part of what is measured)
    socket.gethostname = lambda: host  # by which torchft lets the others find this process
    import torchft  # type: ignore[import-not-found]  # it is in .venv-torchft
    from torch.distributed import TCPStore

    store = TCPStore(host, 0, is_master=True, wait_for_workers=False)
    trained = training(TINY)
    model, optimizer = trained.model, trained.optimizer

    def save() -> dict[str, Any]:
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    def load(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=timeout), load_state_dict=load, state_dict=save,
        min_replica_size=1, use_async_quorum=False, timeout=timeout, rank=0, world_size=1,
        store_addr=host, store_port=store.port, lighthouse_addr=lighthouse, hostname=host,
    )  # fmt: skip
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    wrapped = torchft.DistributedDataParallel(manager, model)
    managed = trained._replace(optimizer=torchft.Optimizer(manager, optimizer))
    while not told:
        before = manager.current_step()
        managed.step(wrapped)
        if manager.current_step() > before and manager.is_participating():
            log.write(manager.current_step(), manager.num_participants())
        time.sleep(STEP_SECONDS)
    manager.shutdown()


if __name__ == "__main__":
    folder, me, address, seconds = sys.argv[1:]
    step_log = StepLog(Path(folder))
    step_log.write(0, 0)
    train(step_log, me, address, timedelta(seconds=float(seconds)))
