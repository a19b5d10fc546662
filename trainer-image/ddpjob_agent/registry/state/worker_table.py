"""The table of registered workers: one frozen row each, replaced with every event."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from ddpjob_agent.membership.state import WorkerState

if TYPE_CHECKING:
    from ddpjob_protocol.messages.control import Expectation, Policy
    from ddpjob_protocol.messages.membership import Member


class WorkerTable:
    """The registered workers by name; changes of an unknown name are ignored."""

    def __init__(self) -> None:
        self._workers: dict[str, WorkerState] = {}

    def rows(self) -> tuple[WorkerState, ...]:
        """Return all rows in the order of registration."""
        return tuple(self._workers.values())

    def get(self, name: str) -> WorkerState | None:
        """Return this worker's row, if there is one."""
        return self._workers.get(name)

    def row_for(self, member: Member, now: float) -> WorkerState:
        """Return the row of a registering worker: a new row for a new incarnation."""
        known = self._workers.get(member.worker)
        if known is None or known.member.incarnation != member.incarnation:
            return WorkerState(member, registered_at=now, last_seen=now)
        return known

    def put(self, worker: WorkerState, expectation: Expectation | None, now: float) -> None:
        """Add this row, or replace the worker's row; mark it if the worker is unexpected."""
        if expectation is not None:
            known = worker.member.worker in expectation.known
            since = None if known else worker.unexpected_at or now
            worker = dataclasses.replace(worker, unexpected_at=since)
        self._workers[worker.member.worker] = worker

    def on_expectation(self, expectation: Expectation, now: float) -> None:
        """Mark the workers that the operator does not name as unexpected."""
        for worker in self.rows():
            self.put(worker, expectation, now)

    def change(self, name: str, **changes: Any) -> bool:
        """Change fields of this worker's row; return whether the row differs now."""
        row = self._workers.get(name)
        if row is None:
            return False
        self._workers[name] = dataclasses.replace(row, **changes)
        return self._workers[name] != row

    def change_all(self, **changes: Any) -> None:
        """Change fields of every row."""
        for name in self._workers:
            self.change(name, **changes)

    def back_off(self, name: str, until: float) -> None:
        """Put this worker into backoff: its failed command does not start before `until`."""
        self.change(
            name, exit_at=None, failure=None, done=False, ready_at=None, rests_until=until,
            failures=self._workers[name].failures + 1,
        )  # fmt: skip

    def extend_deadlines(self, seconds: float) -> None:
        """Extend all deadlines by the seconds for which the service was stalled."""
        for name, worker in self._workers.items():
            closed_at = worker.closed_at if worker.closed_at is None else worker.closed_at + seconds
            self.change(name, last_seen=worker.last_seen + seconds, closed_at=closed_at)

    def on_membership(self, policy: Policy, now: float) -> None:
        """Start a membership: reset the state of the last one and remove lost workers."""
        self._workers = {
            name: dataclasses.replace(
                worker, done=False, exit_at=None, failure=None, promise=None, stops=False,
                finished=False, overdue_at=None, ready_at=None if worker.done else worker.ready_at,
            )
            for name, worker in self._workers.items()
            if worker.lost_at(policy) > now
        }  # fmt: skip
