"""The pace of the equivalence benchmark's processes: a file has the step until which it is full.

Does not import torch: the writer of the file does not need it.
"""

from __future__ import annotations

import time
from pathlib import Path

PACE = "pace"  # file: the step from which on each takes longer than the one before
FIRST_SECONDS, FACTOR = 0.1, 1.25
MOST_SECONDS = 4.0  # processes that do not come out of a broken step for 10 s are started again


class Pace:
    """Train at full speed up to a step, so that a change can happen at it."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / PACE

    def keep(self, step: int) -> None:
        """Wait for a while if that step has come; longer from step to step."""
        beyond = step - int(self._file.read_text())
        if beyond >= 0:
            time.sleep(min(MOST_SECONDS, FIRST_SECONDS * FACTOR**beyond))
