"""The times at which a silent run prints a line. May not: read a clock, print."""

from __future__ import annotations

PAUSES = (60.0, 120.0, 300.0, 600.0)  # seconds of silence before each line; then the last


class SignsOfLife:
    """The silence of one run; times are seconds on any clock."""

    def __init__(self) -> None:
        self._began = 0.0
        self._count = 0

    def restart(self, now: float) -> None:
        """Begin again: the run has changed."""
        self._began, self._count = now, 0

    def due(self, last_line: float, now: float) -> float | None:
        """Return the seconds since the last change if a line is due, and count the line."""
        pause = PAUSES[min(self._count, len(PAUSES) - 1)]
        if now - max(last_line, self._began) < pause:
            return None
        self._count += 1
        return now - self._began
