"""Runs a script slowly, so that what happens to its job comes before its end.

    paced.py train.py ARGUMENT...

It waits after each step. It no longer does when /tmp/hurry is there.
"""

from __future__ import annotations

import runpy
import sys
import time
from pathlib import Path

from torch.optim.optimizer import register_optimizer_step_post_hook

PAUSE_SECONDS = 1.0
HURRY = Path("/tmp/hurry")


def pause(*_: object) -> None:
    """Wait after a step."""
    if not HURRY.exists():
        time.sleep(PAUSE_SECONDS)


register_optimizer_step_post_hook(pause)
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
