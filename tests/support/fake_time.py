"""An event loop whose clock jumps to the next timer as soon as nothing else is left to do.

Hours pass in milliseconds, always in the same way. What waits for nothing that can happen is an
error at once. No sockets, processes or threads: they would have to be waited for in real time.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

R = TypeVar("R")


# Many turns of the loop take time, as with a real clock: a timer that rounding made a little later is
# due, too.
MANY_TURNS = 1000
TICK_SECONDS = 1e-9


class _Selector(selectors.SelectSelector):
    now = 0.0
    turns = 0  # since the clock has moved

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("everything waits, and for nothing that could still happen")
        self.turns = 0 if timeout > TICK_SECONDS else self.turns + 1
        self.now += timeout + (TICK_SECONDS if self.turns > MANY_TURNS else 0.0)
        return super().select(0)


class FakeTimeLoop(asyncio.SelectorEventLoop):
    """A loop with a time of its own."""

    def __init__(self) -> None:
        self._clock = _Selector()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now


def run(main: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine like asyncio.run, in fake time."""
    with asyncio.Runner(loop_factory=FakeTimeLoop) as runner:
        return runner.run(main)
