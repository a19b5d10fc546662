"""Training with ten steps a second that costs little, and reports its steps.

In live mode by `Loop`; else by DDP, in a script that reports steps itself.
steady.py live|restart FOLDER
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.workloads.common import TINY, StepLog, training

from ddpjob_protocol.environment import ENV_SNAPSHOT_DIR

PAUSE_SECONDS = 0.1


def live(log: StepLog) -> None:
    """Train until killed; processes stay."""
    from ddpjob_trainer import Loop  # imports torch

    trained = training(TINY)
    loop = Loop(trained.model, trained.optimizer, steps=10**9)
    for step in loop:
        with step:
            trained.step(loop.model)
        if step.done:
            log.write(step.number + 1, step.world_size)
        time.sleep(PAUSE_SECONDS)


def restart(log: StepLog) -> None:
    """Train until killed; processes start again."""
    # ruff: noqa: PLC0415  (as above)
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from ddpjob_trainer.reporting.progress import step_done

    dist.init_process_group("gloo")
    trained = training(TINY)
    wrapped = DistributedDataParallel(trained.model)
    world, step = dist.get_world_size(), 0
    while True:
        trained.step(wrapped)
        step += 1
        step_done(step)
        log.write(step, world)
        time.sleep(PAUSE_SECONDS)


if __name__ == "__main__":
    os.environ.pop(ENV_SNAPSHOT_DIR, None)
    step_log = StepLog(Path(sys.argv[2]))
    {"live": live, "restart": restart}[sys.argv[1]](step_log)
