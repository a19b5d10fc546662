"""The training script of every peer whose processes start again: DDP on CPU until it is killed.

Steps restart from 0. step_forever.py FOLDER
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.workloads.common import STEP_SECONDS, TINY, StepLog, training


def train(
    log: StepLog, pause: float = STEP_SECONDS, report: Callable[[int], object] | None = None
) -> None:
    """Train until killed; after each step call `report`, and wait for `pause` seconds."""
    # ruff: noqa: PLC0415  (importing torch is part of what is measured)
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    trained = training(TINY)
    wrapped = DistributedDataParallel(trained.model)
    world, step = dist.get_world_size(), 0
    while True:
        trained.step(wrapped)
        step += 1
        if report is not None:
            report(step)
        log.write(step, world)
        time.sleep(pause)


if __name__ == "__main__":
    step_log = StepLog(Path(sys.argv[1]))
    step_log.write(0, int(os.environ["WORLD_SIZE"]))
    train(step_log)
