"""The graceful stop of processes: the agreed last step, and whether it is saved.

May not: wait, end a process, or decide anything about memberships.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Callable

from ddpjob_agent.worker.decisions.next_action import Steps
from ddpjob_protocol.messages.process import Assignment
from ddpjob_protocol.messages.warnings import grace_period_too_short

if TYPE_CHECKING:
    from ddpjob_agent.worker.processes.live_processes import LiveProcesses
    from ddpjob_protocol.messages.agent import Message
    from ddpjob_protocol.messages.membership import Membership

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
        self._until: float | None = None  # see `Steps`
        self._others_until: float | None = None
        self._asked = False  # True while the workers agree on a last step
        self._others_save = False  # other workers still do the last step, or save it
        self.stopped_in = ""  # the last membership whose processes stopped

    def on_order(self, order: Message, running: Membership | None) -> None:
        """Assign the last step to processes that were started for one membership."""
        last = order.get("last")
        self._asked = order.get("asked", False)
        self._others_save = last is not None and not last.get("saved", True)
        if not self._others_save:
            self._others_until = None
        if running is None:
            return
        is_mine = last is not None and last["membership"] == str(running.id)
        self._last_step = last["step"] if last is not None and is_mine else None
        self._live.assign(
            Assignment(last_step=self._last_step, save=is_mine, stop_requested=self._asked)
        )

    def reset(self, membership: Membership | None) -> None:
        """Clear the last step before processes start; `membership` is None in live mode."""
        self._last_step = self._others_until = None
        if membership is not None:
            self._live.assign(Assignment(stop_requested=self._asked))

    def on_sigterm(self) -> None:
        """Stop waiting for the saves of other workers, because this worker ends."""
        self._others_save = False

    def begin(self, now: float) -> None:
        """Begin the time for the last step."""
        self._until = now + self._timeout

    def await_saves(self, now: float) -> float:
        """Begin the time for the saves of others, unless it has begun; return what is left."""
        if self._others_until is None:
            self._others_until = now + self._timeout
        return self._others_until - now

    def on_ended(self) -> None:
        """Forget the time for a last step: the processes have ended."""
        self._until = None

    def steps(self) -> Steps:
        """Return what the next action depends on."""
        return Steps(
            accepts_stops=self._live.stops,
            has_last_step=self._last_step is not None,
            has_stopped=self._live.stopped,
            until=self._until,
            others_save=self._others_save,
            others_until=self._others_until,
        )

    def cut_off(self) -> None:
        """Report that the time for the last step is over."""
        seconds = self._timeout
        log.warning("no step or save ended within %.0f s; killing the processes", seconds)
        self._send(grace_period_too_short(seconds).to_message())

    def on_stopped(self, membership: Membership) -> None:
        """Report that the processes have stopped in this membership."""
        self.stopped_in = str(membership.id)
        self._send({"type": "stopped", "membership": self.stopped_in})
