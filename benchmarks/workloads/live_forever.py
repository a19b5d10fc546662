"""The same training in ddpjob's loop (live mode): processes stay when others come and go.

Steps continue where they were. No snapshots, as with the other peers.
live_forever.py FOLDER tiny|large
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.workloads.common import STEP_SECONDS, StepLog, training

from ddpjob_protocol.environment import ENV_SNAPSHOT_DIR


def train(log: StepLog, size: str, pause: float = STEP_SECONDS) -> None:
    """Train until killed; wait for `pause` seconds after each step."""
    from ddpjob_trainer import Loop  # noqa: PLC0415 - imports torch, which is measured

    trained = training(size)
    loop = Loop(trained.model, trained.optimizer, steps=10**9)
    for step in loop:
        with step:
            trained.step(loop.model)
        if step.done:
            log.write(step.number + 1, step.world_size)
        time.sleep(pause)


if __name__ == "__main__":
    os.environ.pop(ENV_SNAPSHOT_DIR, None)
    step_log = StepLog(Path(sys.argv[1]))
    step_log.write(0, 0)
    train(step_log, sys.argv[2])
