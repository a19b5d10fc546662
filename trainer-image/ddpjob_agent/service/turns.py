"""The times of the service's turns. A turn decides, sends orders and publishes the report.

A turn is due at once after a message that calls for one, and at the next deadline. It begins when
the messages that have arrived are read, so all of them share it: when 1,000 workers join, few turns
see them all. Turns take half of the service's time at most: the other half is for messages, however
large the job.

If a turn fails, the service lives on: the failure is reported, and the next turn tries again.

May not: decide anything about the job.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Protocol

from ddpjob_agent.registry.effects import Effect

if TYPE_CHECKING:
    from collections.abc import Callable

TICK_SECONDS = 0.5  # between two turns at most
GATHER_SECONDS = 0.1  # for messages that arrive without a pause, at most
QUIET_PASSES = 4  # of the event loop without an effect: then all that has arrived is read
REPORT_SECONDS = 0.1  # between two reports at least, if only the report changes

log = logging.getLogger("ddpjob.rendezvous")


class Turn(Protocol):
    """The content of the turns."""

    def take(self, now: float, late: float) -> float | None:
        """Take a turn that begins `late` seconds after it was due; return the next deadline."""

    def publish(self) -> None:
        """Publish the report."""

    def on_failure(self, error: str, now: float) -> None:
        """Report that turns fail."""


class _Timer:
    """One call in the future; setting it again can only make it earlier."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self._handle: asyncio.TimerHandle | None = None

    def set(self, at: float) -> None:
        if self._handle is None or at < self._handle.when():
            self.cancel()
            self._handle = asyncio.get_running_loop().call_at(at, self._call)

    def cancel(self) -> float:
        """Cancel the call; return when it was due."""
        handle, self._handle = self._handle, None
        if handle is None:
            return time.monotonic()
        handle.cancel()
        return handle.when()


class Turns:
    """The turns of one service, from `start` to `close`."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._next = _Timer(self._gather)
        self._report = _Timer(self._publish)
        self._not_before = 0.0
        self._published_at = 0.0
        self._error = ""
        self._effects = 0  # that call for a turn, so far
        self._gathering: asyncio.Handle | None = None
        self._is_closed = False

    def start(self) -> None:
        """Take the first turn."""
        self.on_effect(Effect.TURN)

    def close(self) -> None:
        """Take no more turns."""
        self._is_closed = True
        self._next.cancel()
        self._report.cancel()
        if self._gathering:
            self._gathering.cancel()

    def on_effect(self, effect: Effect) -> None:
        """Plan what the effect of a message calls for."""
        now = time.monotonic()
        if self._is_closed:
            return
        if effect is Effect.TURN:
            self._effects += 1
            if self._gathering is None:
                self._next.set(max(now, self._not_before))
        elif effect is Effect.REPORT:
            self._report.set(max(now, self._published_at + REPORT_SECONDS))

    def _gather(self) -> None:
        due = self._next.cancel()
        self._look(due, self._effects, QUIET_PASSES)

    def _look(self, due: float, effects: int, passes: int) -> None:
        """Take the turn when the last passes had no effect; otherwise look again."""
        if effects != self._effects:
            effects, passes = self._effects, QUIET_PASSES
        if passes and time.monotonic() < due + GATHER_SECONDS:
            loop = asyncio.get_running_loop()
            self._gathering = loop.call_soon(self._look, due, effects, passes - 1)
        else:
            self._gathering = None
            self._take(due)

    def _take(self, due: float) -> None:
        now = time.monotonic()
        late = now - due
        deadline = None
        try:
            deadline = self._turn.take(now, late)
        except Exception as error:  # noqa: BLE001 - whatever it is, the service lives on
            self._fail(error, now)
        else:
            self._error = ""
            self._publish()
        finally:
            ended = time.monotonic()
            self._not_before = ended + (ended - now)
            at = ended + TICK_SECONDS
            self._next.set(max(self._not_before, at if deadline is None else min(at, deadline)))

    def _publish(self) -> None:
        self._report.cancel()
        if self._gathering:  # the turn publishes
            return
        self._published_at = time.monotonic()
        try:
            self._turn.publish()
        except Exception as error:  # noqa: BLE001 - as above
            self._fail(error, self._published_at)

    def _fail(self, error: Exception, now: float) -> None:
        text = f"{type(error).__name__}: {error}"[:200]
        if text != self._error:
            log.error("a turn of the rendezvous service failed", exc_info=error)
        self._error = text
        self._turn.on_failure(text, now)
