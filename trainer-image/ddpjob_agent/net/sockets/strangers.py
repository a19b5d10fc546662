"""The connections of a listener that have not proved a key yet: few, for a short time.

When there are too many, the oldest one ends. A peer with a key proves it within one round trip,
so a flood of idle connections does not lock it out.
"""

from __future__ import annotations

import asyncio

MOST_STRANGERS = 128
STRANGER_SECONDS = 10.0


class Strangers:
    """The strangers of one listener."""

    def __init__(self, most: int = MOST_STRANGERS, seconds: float = STRANGER_SECONDS) -> None:
        self._most = most
        self._seconds = seconds
        self._timers: dict[asyncio.StreamWriter, asyncio.TimerHandle] = {}  # the oldest first

    def __len__(self) -> int:
        return len(self._timers)

    def add(self, writer: asyncio.StreamWriter) -> None:
        """Add a connection; end the oldest one if there are too many."""
        if len(self._timers) >= self._most:
            self._end(next(iter(self._timers)))
        loop = asyncio.get_running_loop()
        self._timers[writer] = loop.call_later(self._seconds, self._end, writer)

    def remove(self, writer: asyncio.StreamWriter) -> None:
        """Forget a connection that has proved its key or has closed."""
        timer = self._timers.pop(writer, None)
        if timer is not None:
            timer.cancel()

    def _end(self, writer: asyncio.StreamWriter) -> None:
        self.remove(writer)
        writer.transport.abort()
