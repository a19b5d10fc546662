"""The order for each worker while the job runs; a function of the state alone.

May not: change anything, read a clock or import asyncio.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ddpjob_agent.membership.forming import leaves
from ddpjob_protocol.codec import encode

if TYPE_CHECKING:
    from ddpjob_agent.membership.last_step import LastStep
    from ddpjob_agent.membership.state import MembershipState
    from ddpjob_agent.service.file_sync import FileSyncCoordinator
    from ddpjob_agent.service.worker_table import WorkerTable
    from ddpjob_protocol.membership import Membership
    from ddpjob_protocol.messages import Message


class Orders(NamedTuple):
    """The state that determines the orders."""

    view: MembershipState
    roster: WorkerTable
    files: FileSyncCoordinator
    last: LastStep | None

    def order_for(self, worker: str, now: float) -> Message:
        """Return the order for this worker: `run` the membership, `halt`, or `stay` in memory."""
        view, known = self.view, self.roster.get(worker)
        current = view.current if view.running else None
        if known and current and known.member in current.members:
            return {
                "type": "run",
                "membership": encode(current),
                "live": view.live,
                "asked": view.asked_at is not None,
                "last": self._last_step_message(now),
                "files": self.files.instruction_for(view, worker, now),
                "port": self._port(current),
                "reach": self._reach(current),
            }
        if known is None or not view.live or known.in_backoff(now):
            return {
                "type": "halt",
                "last": self._last_step_message(now),
                "files": self.files.instruction_for(view, worker, now),
                "planned": not view.lost and view.blamed is None,
            }
        last = self.last
        after = last.step if last is not None and last.binds(known.member) else None
        leave = view.expectation is not None and leaves(view, known)
        save = not view.running and after is not None
        return {"type": "stay", "leave": leave, "after": after, "save": save}

    def _port(self, membership: Membership) -> int | None:
        """Return the port that the first member reserves for the processes."""
        first = self.roster.get(membership.members[0].worker)
        return first.port if first else None

    def _reach(self, membership: Membership) -> Message:
        """Return, by member, the port for the connectivity checks of the other members."""
        known = (self.roster.get(member.worker) for member in membership.members)
        return {each.member.worker: each.reach for each in known if each and each.reach}

    def _last_step_message(self, now: float) -> Message | None:
        if self.last is None:
            return None
        saved = self.view.live or self.last.is_done(self.roster.workers(), self.view.policy, now)
        return self.last.to_message(saved=saved)
