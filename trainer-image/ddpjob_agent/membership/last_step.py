"""The last step of a membership that ends in a planned way, and the workers still at it.

May not: decide which step is the last (`planned_change` does), read a clock, open anything.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ddpjob_agent.membership.state import WorkerState
    from ddpjob_protocol.messages.agent import Message
    from ddpjob_protocol.messages.control import Policy
    from ddpjob_protocol.messages.membership import Member, Membership


@dataclasses.dataclass
class LastStep:
    """The agreed last step of a membership, and the workers that have done it."""

    membership: Membership  # the membership that ends
    step: int
    stopped: set[str] = dataclasses.field(default_factory=set)  # workers that have done the step

    def binds(self, member: Member) -> bool:
        """Return whether this member has to do the step: a member lost before cannot."""
        return self.membership.has(member)

    def is_done(self, workers: Iterable[WorkerState], policy: Policy, now: float) -> bool:
        """Return whether every bound worker that is still connected has done the step."""
        return all(
            worker.member.worker in self.stopped
            or worker.closed_at is not None
            or worker.lost_at(policy) <= now
            for worker in workers
            if self.binds(worker.member)
        )

    def to_message(self, *, saved: bool) -> Message:
        """Return the message for agents; `saved`: every worker whose processes end has done it."""
        return {"membership": str(self.membership.id), "step": self.step, "saved": saved}
