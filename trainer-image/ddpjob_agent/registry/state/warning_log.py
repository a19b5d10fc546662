"""The warnings of a job: ongoing problems of each worker, and the last incidents."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING

from ddpjob_protocol.messages.warnings import MAX_INCIDENTS, AgentWarning, JobWarning

if TYPE_CHECKING:
    from collections.abc import Collection

MAX_WORKERS = 3  # reported workers with the same reason; the others are counted
MAX_ONGOING = 9
OTHERS = "more workers have this problem"


class WarningLog:
    """The warnings of a job, oldest first; a problem is dropped when it ends."""

    def __init__(self) -> None:
        self._ongoing: dict[tuple[str, str], JobWarning] = {}  # by reason and worker
        self._memberships: dict[tuple[str, str], str] = {}  # the problem ends with this one
        self._incidents: collections.deque[JobWarning] = collections.deque(maxlen=MAX_INCIDENTS)

    def add(self, worker: str, warning: AgentWarning, wall: float) -> None:
        """Add a worker's problem, replace its older problem of this reason, or end that one."""
        key = (warning.reason, worker)
        old = self._ongoing.get(key)
        if old is not None and old.message == warning.message:
            wall = old.since
        new = JobWarning(warning.reason, warning.message, worker, wall, warning.ongoing)
        if not warning.ongoing:
            self._add_incident(new)
        elif warning.message:
            self._ongoing[key] = new
            self._memberships[key] = warning.membership
        else:
            self._ongoing.pop(key, None)

    def _add_incident(self, new: JobWarning) -> None:
        same = ((each.reason, each.worker, each.message) for each in self._incidents)
        if (new.reason, new.worker, new.message) not in same:
            self._incidents.append(new)

    def end_others(self, reason: str, worker: str) -> None:
        """End the problems of this reason that other workers have."""
        for key in [key for key in self._ongoing if key[0] == reason and key[1] != worker]:
            del self._ongoing[key]

    def on_membership(self, workers: Collection[str]) -> None:
        """Keep the problems of these workers that outlast a membership."""
        self._ongoing = {
            key: each
            for key, each in self._ongoing.items()
            if each.worker in workers and not self._memberships[key]
        }

    def warnings(self) -> tuple[JobWarning, ...]:
        """Return the ongoing problems, then the incidents; few of each reason."""
        by_reason: dict[str, list[JobWarning]] = {}
        for each in self._ongoing.values():
            by_reason.setdefault(each.reason, []).append(each)
        ongoing = []
        for reason, found in by_reason.items():
            ongoing += found[:MAX_WORKERS]
            others = found[MAX_WORKERS:]
            if others:
                first = others[0].since
                ongoing.append(JobWarning(reason, OTHERS, since=first, count=len(others)))
        return (*ongoing[:MAX_ONGOING], *self._incidents)
