"""The signs of life of the members: their answers, and the steps of their processes.

The first process reports steps several times a second. If a report is late, the service asks all
members for heartbeats, until the next report. `membership.silence` decides by the answers.

A service that did not run for a while has read no answers. So it forgets its questions: time in
which it did not run counts for no worker.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from typing import TYPE_CHECKING

from ddpjob_agent.membership.silence import Signs, longest_step, overdue, usual_pause

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ddpjob_agent.membership.state import WorkerState
    from ddpjob_protocol.messages.control import Policy

BEAT_SECONDS = 1.0  # between two heartbeats of an agent
MEMORY_SECONDS = 60.0
MAX_PAUSES = 300  # kept; a script in which every process reports has many.
LEAST_PAUSES = 5  # between reports of steps; with fewer, the usual time is not known.
LATE_SECONDS, LATE = 0.3, 1.5  # a report is late after this time, and this multiple of the usual
ASK_SECONDS = 0.3  # between two questions
# Between two looks, at least and by member: after a longer time, forget the questions.
SERVICE_SECONDS, SERVICE_SECONDS_EACH = 0.5, 0.0015


@dataclasses.dataclass
class _Member:
    """The messages of one member."""

    heard_at: float
    asked_at: float | None = None
    step: int | None = None
    stepped_at: float | None = None
    answered_at: float = 0.0
    slowest: tuple[float, float] = (0.0, 0.0)  # of this half of MEMORY_SECONDS, and of the last
    half_ends: float = 0.0

    def hear(self, now: float) -> None:
        """Record a message: an answer, or a heartbeat that was due."""
        due = self.heard_at + BEAT_SECONDS if self.asked_at is None else self.asked_at
        self.heard_at, self.asked_at = now, None
        this, last = self.slowest
        if now >= self.half_ends:
            self.half_ends = now + MEMORY_SECONDS / 2
            this, last = 0.0, this
        self.slowest = (max(this, now - due), last)


class SignsOfLife:
    """The signs of life of the members of the current membership."""

    def __init__(self) -> None:
        self._members: dict[str, _Member] = {}
        self._pauses: collections.deque[tuple[float, float]] = collections.deque(maxlen=MAX_PAUSES)
        self._reported: tuple[float, int] | None = None  # time and step of the last report
        self._asked_at = 0.0
        self._looked_at = 0.0

    def on_membership(self, workers: Iterable[str], now: float) -> None:
        """Start a membership; those that stay are known."""
        known, self._members = self._members, {}
        for worker in workers:
            self._members[worker] = known.get(worker) or _Member(now)
            self._members[worker].stepped_at = None
        self._pauses.clear()
        self._forget()

    def on_hello(self, worker: str, now: float) -> None:
        """Record that an agent registers: what it did before counts no more."""
        if worker in self._members:
            self._members[worker] = _Member(now)

    def on_message(self, worker: str, now: float) -> None:
        """Record a message of this worker."""
        member = self._members.get(worker)
        if member is not None:
            member.hear(now)

    def on_report(self, worker: str, step: int, now: float) -> None:
        """Record that a process of this worker reports a step.

        A process may send a report long after the step: then the time of the step counts.
        """
        member, at = self._members.get(worker), now
        if member is not None and member.step == step and member.stepped_at is not None:
            at = member.stepped_at
        if self._reported is not None:
            last, before = self._reported
            if step == before:
                return
            at = max(at, last)
            self._pauses.append((now, at - last))
        self._reported = (at, step)
        while self._pauses and self._pauses[0][0] < now - MEMORY_SECONDS:
            self._pauses.popleft()

    def on_step(self, worker: str, step: int, age: float, now: float) -> None:
        """Record the step that this worker's processes have done, `age` seconds ago by its clock.

        A clock that jumps moves the time by no more than the time between two answers.
        """
        member = self._members.get(worker)
        if member is None:
            return
        if step != member.step or member.stepped_at is None:
            since = member.answered_at if member.stepped_at is not None else now
            member.step, member.stepped_at = step, min(now, max(now - age, since))
        member.answered_at = now

    def to_ask(self, workers: Iterable[WorkerState], policy: Policy, now: float) -> list[str]:
        """Return the members to ask for a heartbeat now."""
        if self._was_stalled(now):
            self._forget()
        self._looked_at = now
        if not self._is_late(policy, now) or not self._is_question_due(now):
            return []
        self._asked_at = now
        asked = []
        for worker in workers:
            member = self._members.get(worker.member.worker)
            if member is not None and worker.closed_at is None and member.asked_at is None:
                member.asked_at = now
                asked.append(worker.member.worker)
        return asked

    def overdue(
        self, workers: Iterable[WorkerState], policy: Policy, now: float
    ) -> dict[str, float]:
        """Return when each member that does not answer counts as lost."""
        if self._was_stalled(now) or not self._is_late(policy, now):
            return {}
        signs = [
            Signs(name, member.asked_at, max(member.slowest), worker.closed_at is None,
                  member.answered_at, member.stepped_at)
            for worker in workers
            if (member := self._members.get(name := worker.member.worker)) is not None
        ]  # fmt: skip
        return overdue(signs, longest_step(self._last_pauses()), policy.process_deadline, now)

    def _was_stalled(self, now: float) -> bool:
        """Return whether the service did not run for a while."""
        limit = max(SERVICE_SECONDS, SERVICE_SECONDS_EACH * len(self._members))
        return now - self._looked_at > limit

    def _is_late(self, policy: Policy, now: float) -> bool:
        """Return whether a report of a step is late, but not for longer than a worker may be silent.

        Then the heartbeat deadline counts, and a slow step is not disturbed.
        """
        if self._reported is None or len(self._pauses) < LEAST_PAUSES:
            return False
        late = now - self._reported[0]
        if not LATE_SECONDS <= late <= policy.heartbeat_deadline:
            return False
        return late >= LATE * usual_pause(self._last_pauses())

    def _is_question_due(self, now: float) -> bool:
        """Return whether to ask again; also when the job has stalled, as only later answers count."""
        return now - self._asked_at >= ASK_SECONDS or self._asked_at < self._stalled_at() <= now

    def _stalled_at(self) -> float:
        """Return when the job has stalled, if no member does a further step."""
        steps = [each.stepped_at for each in self._members.values() if each.stepped_at is not None]
        return max(steps, default=math.inf) + longest_step(self._last_pauses())

    def _last_pauses(self) -> list[float]:
        return [pause for _, pause in self._pauses]

    def _forget(self) -> None:
        self._reported = None
        for member in self._members.values():
            member.asked_at = None
