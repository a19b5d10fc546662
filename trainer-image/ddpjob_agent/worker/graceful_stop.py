"""The graceful stop of processes: the agreed last step, and the wait until it is saved.

This module waits only. It ends no process and decides nothing about memberships.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING, Callable

from ddpjob_protocol.process import Assignment
from ddpjob_protocol.warnings import grace_period_too_short

if TYPE_CHECKING:
    from ddpjob_agent.worker.live_processes import LiveProcesses
    from ddpjob_protocol.membership import Membership
    from ddpjob_protocol.messages import Message

log = logging.getLogger("ddpjob.agent")


class GracefulStop:
    """The graceful stop of one worker's processes; `timeout` in seconds."""

    def __init__(
        self, live: LiveProcesses, send: Callable[[Message], None], timeout: float
    ) -> None:
        self._live = live
        self._send = send
        self._timeout = timeout
        self._last_step: int | None = None  # after this step all processes save and stop
        self._asked = False  # True while the workers agree on a last step
        self._all_saved = asyncio.Event()  # no other worker still does the last step
        self._all_saved.set()
        self.stopped_in = ""  # the last membership whose processes stopped

    def on_order(self, order: Message, running: Membership | None) -> None:
        """Assign the last step to processes that were started for one membership."""
        last = order.get("last")
        self._asked = order.get("asked", False)
        if last is None or last.get("saved", True):
            self._all_saved.set()
        else:
            self._all_saved.clear()
        if running is None:
            return
        is_mine = last is not None and last["membership"] == str(running.id)
        self._last_step = last["step"] if last is not None and is_mine else None
        self._live.assign(
            Assignment(last_step=self._last_step, save=is_mine, stop_requested=self._asked)
        )

    def reset(self, membership: Membership | None) -> None:
        """Clear the last step before processes start; `membership` is None in live mode."""
        self._last_step = None
        if membership is not None:
            self._live.assign(Assignment(stop_requested=self._asked))

    def on_sigterm(self) -> None:
        """Stop waiting for the saves of other workers, because this worker ends."""
        self._all_saved.set()

    def has_step_to_do(self, *, awaits_word: bool) -> bool:
        """Return whether the processes have a last step to do, or await one (`awaits_word`)."""
        due = awaits_word or self._last_step is not None
        return due and self._live.stops and not self._live.stopped

    async def wait(self, is_busy: Callable[[], bool]) -> None:
        """Wait until the processes are not busy, or until the timeout."""
        until = time.monotonic() + self._timeout
        while is_busy():
            if time.monotonic() > until:
                seconds = self._timeout
                log.warning("no step or save ended within %.0f s; killing the processes", seconds)
                self._send(grace_period_too_short(seconds).to_message())
                break
            await asyncio.sleep(0.01)

    def on_stopped(self, membership: Membership) -> None:
        """Report that the processes have stopped in this membership."""
        self.stopped_in = str(membership.id)
        self._send({"type": "stopped", "membership": self.stopped_in})

    async def wait_for_save(self) -> None:
        """Wait until other workers have saved the snapshot that the next processes load."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._all_saved.wait(), self._timeout)
