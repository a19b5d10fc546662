"""The last step of a membership that ends by agreement, and who of its workers still does it.

May not: decide which step that is (`planned`), read a clock, open anything.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ddpjob_agent.membership.state import WorkerState
    from ddpjob_protocol.control import Policy
    from ddpjob_protocol.membership import Member, Membership
    from ddpjob_protocol.messages import Message


@dataclasses.dataclass
class LastStep:
    """What was agreed on, and what became of it."""

    membership: Membership  # the one that ends
    step: int
    stopped: set[str] = dataclasses.field(default_factory=set)  # workers that have done it

    def binds(self, member: Member) -> bool:
        """Whether this member has to do it: who was lost before cannot."""
        return member in self.membership.members

    def is_done(self, workers: Iterable[WorkerState], policy: Policy, now: float) -> bool:
        """Whether nobody who can be heard of does it still."""
        return all(
            worker.member.worker in self.stopped
            or worker.closed_at is not None
            or worker.lost_at(policy) <= now
            for worker in workers
            if self.binds(worker.member)
        )

    def to_message(self, *, saved: bool) -> Message:
        """As agents hear it; `saved`: nobody whose processes end does it still."""
        return {"membership": str(self.membership.id), "step": self.step, "saved": saved}
