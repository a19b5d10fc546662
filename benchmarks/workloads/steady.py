"""Training with ten steps a second that costs little, and reports its steps.

In live mode by `Loop`; else by DDP, in a script that reports steps itself.
steady.py live|restart FOLDER
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.workloads import live_forever, step_forever
from benchmarks.workloads.common import TINY, StepLog

from ddpjob_protocol.environment import ENV_SNAPSHOT_DIR
from ddpjob_trainer.reporting.progress import step_done

PAUSE_SECONDS = 0.1

if __name__ == "__main__":
    os.environ.pop(ENV_SNAPSHOT_DIR, None)
    step_log = StepLog(Path(sys.argv[2]))
    if sys.argv[1] == "live":
        live_forever.train(step_log, TINY, PAUSE_SECONDS)
    else:
        step_forever.train(step_log, PAUSE_SECONDS, step_done)
