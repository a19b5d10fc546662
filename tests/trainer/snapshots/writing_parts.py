"""One rank of three that save together; writes what it saw to OUT/RANK.json.

writing_parts.py RANK OUT {together|busy|other_model|full|lost|small}
"""

from __future__ import annotations

import errno
import json
import logging
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from ddpjob_trainer import SnapshotError, Snapshots
from ddpjob_trainer.snapshots.model import write_plan
from ddpjob_trainer.snapshots.storage import durable
from ddpjob_trainer.snapshots.storage.snapshot_storage import SnapshotStorage
from trainer.runs import Run

RANKS = 3


class Rank:
    """The actions of a rank, by kind."""

    def __init__(self, rank: int, out: Path) -> None:
        self.rank = rank
        self.out = out
        self.directory = out / "shared"
        self.run = Run()
        self.run.train(2)
        self.mean(self.run).fill_(float(rank))  # differs, as under DDP
        self.snapshots = Snapshots(self.directory, share=True, check_replicas=False)
        self.seen: dict[str, Any] = {}

    def mean(self, run: Run) -> torch.Tensor:
        return run.model.get_buffer("1.running_mean")

    def save(self, step: int, *, wait: bool = False) -> bool:
        return self.snapshots.save(step, **self.run.parts(), wait=wait)

    def together(self) -> None:
        self.seen["saved"] = self.save(2, wait=True)
        distributed.barrier()
        fresh = Run(seed=9)
        loaded = Snapshots(self.directory).load(**fresh.parts())
        self.seen["step"] = loaded and loaded.step
        self.seen["mean"] = self.mean(fresh).tolist()
        self.seen["same"] = all(
            torch.equal(mine, its)
            for mine, its in zip(self.run.model.parameters(), fresh.model.parameters(), strict=True)
        )

    def small(self) -> None:
        write_plan.LEAST_BYTES = 1 << 20
        self.together()

    def busy(self) -> None:
        """Rank 2 is still writing when the next one is due; the last one is saved twice."""
        may_go, write_all = threading.Event(), durable.write_all

        def held(*arguments: Any) -> None:
            assert may_go.wait(120)
            write_all(*arguments)

        if self.rank == 2:
            durable.write_all = held  # type: ignore[assignment]
        first = self.save(2)
        second = self.save(3)
        distributed.barrier()
        may_go.set()
        self.snapshots.wait()
        distributed.barrier()
        third = self.save(4, wait=True)
        self.seen["saved"] = [first, second, third, self.save(4, wait=True)]
        self.seen["skipped"] = self.snapshots.skipped

    def other_model(self) -> None:
        if self.rank == 1:
            self.run = Run(width=5)
            self.run.train(2)
        self.seen["problem"] = self._problem(lambda: self.save(2, wait=True))

    def full(self) -> None:
        write_all = durable.write_all

        def no_room(chunks: Any, path: Path) -> None:
            if path.name.startswith("tensors"):
                raise OSError(errno.ENOSPC, "No space left on device")
            write_all(chunks, path)

        if self.rank == 1:
            durable.write_all = no_room
        self.seen["problem"] = self._problem(lambda: self.save(2, wait=True))

    def lost(self) -> None:
        """Rank 2 dies before it has written; the others are in another membership afterwards."""
        os.environ.update(DDPJOB_JOB_UID="job", DDPJOB_MEMBERSHIP="1.1.1")
        self.save(1, wait=True)
        if self.rank == 2:
            SnapshotStorage.write_part = lambda *_: os._exit(9)  # type: ignore[method-assign]
        assert self.save(2)
        self.snapshots._duties.shares = (
            False  # as many as are left cannot agree here: there is no group
        )
        os.environ.update(DDPJOB_MEMBERSHIP="1.1.2")
        self.snapshots.wait()
        self.seen["skipped"] = self.snapshots.skipped
        if self.rank == 0:
            self.snapshots.resume_from(1)
            self.snapshots.save(3, **self.run.parts(), wait=True)

    def _problem(self, work: Callable[[], object]) -> str:
        try:
            work()
        except SnapshotError as error:
            return str(error)
        return ""


def main(rank: int, out: Path, kind: str) -> None:
    logging.disable()
    torch.set_num_threads(1)
    write_plan.LEAST_BYTES = 1
    distributed.init_process_group("gloo", f"file://{out}/meet", world_size=RANKS, rank=rank)
    mine = Rank(rank, out)
    getattr(mine, kind)()
    (out / f"{rank}.json").write_text(json.dumps(mine.seen))
    if kind != "lost":
        distributed.barrier()
    os._exit(0)  # quickly: to take all of torch apart takes a second


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
