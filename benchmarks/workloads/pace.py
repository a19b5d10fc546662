"""The pace at which the equivalence benchmark's processes train: a file says until when at full speed.

Does not import torch: who writes the file has no need of it.
"""

from __future__ import annotations

import time
from pathlib import Path

PACE = "pace"  # file: the step from which on each takes longer than the one before
SLOWER_SECONDS = 0.05


class Pace:
    """As fast as can be up to a step, so that something can happen at it."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / PACE

    def keep(self, step: int) -> None:
        """Wait for a while if that step has come; longer from step to step."""
        beyond = step - int(self._file.read_text())
        if beyond >= 0:
            time.sleep(SLOWER_SECONDS * (1 + beyond))
