"""Steps per second and the time left, from reported steps. May not: read a clock."""

from __future__ import annotations

import collections

WINDOW_SECONDS = 30.0


class StepRate:
    """The rate of the steps of one membership."""

    def __init__(self) -> None:
        self._points: collections.deque[tuple[float, int]] = collections.deque()

    def add(self, step: int, now: float) -> None:
        """Add a reported step; a step back begins again."""
        if self._points and step < self._points[-1][1]:
            self._points.clear()
        if self._points and step == self._points[-1][1]:
            return
        self._points.append((now, step))
        while len(self._points) > 2 and now - self._points[0][0] > WINDOW_SECONDS:
            self._points.popleft()

    def restart(self) -> None:
        """Forget all steps, because another membership trains."""
        self._points.clear()

    @property
    def per_second(self) -> float | None:
        """Steps per second; None before two steps."""
        if len(self._points) < 2:
            return None
        (began, first), (ended, last) = self._points[0], self._points[-1]
        return (last - first) / (ended - began) if ended > began else None

    def seconds_left(self, total: int | None) -> float | None:
        """Return the seconds until `total` steps are done; None if they are not known."""
        rate = self.per_second
        if not rate or total is None:
            return None
        return max(0, total - self._points[-1][1]) / rate


def describe_seconds(seconds: float) -> str:
    """Return a duration as 0:45, 12:05 or 3:07:09."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
