"""Who trains together: the ordered workers of one membership."""

from __future__ import annotations

import dataclasses
import enum
from typing import NamedTuple


class Cause(str, enum.Enum):
    """Why a membership was formed; exactly one each, the gravest of what happened."""

    STARTED = "started"
    LOST = "lost"
    FAILED = "failed"
    LEFT = "left"
    JOINED = "joined"

    def __str__(self) -> str:
        return self.value


class MembershipId(NamedTuple):
    """Orders all memberships of a job: who holds a lower one has been overtaken."""

    term: int  # counts rendezvous pods
    boot: int  # counts starts of that pod's container
    round: int  # counts memberships, over all terms

    def __str__(self) -> str:
        return f"{self.term}.{self.boot}.{self.round}"

    @classmethod
    def parse(cls, text: str) -> MembershipId:
        """Inverse of str()."""
        term, boot, n = text.split(".")
        return cls(int(term), int(boot), int(n))


@dataclasses.dataclass(frozen=True)
class Member:
    """One worker in a membership: a pod with its process count."""

    worker: str
    incarnation: str  # new for every agent process
    address: str
    processes: int


@dataclasses.dataclass(frozen=True)
class Membership:
    """The ordered workers of one round; order gives ranks, survivors first."""

    id: MembershipId
    members: tuple[Member, ...]
    cause: Cause
    detail: str  # which workers came and went, for people
    failures: int = 0  # application failures so far: survives the service, because agents keep it
    losses: int = 0  # memberships formed because a worker was lost
    after: int | None = (
        None  # the last step that the membership before does; None: all stop at once
    )
    snapshot_step: int | None = None  # the newest snapshot when it was formed
    repeated_steps: int = 0  # steps that were done again by then

    def stops_at_once(self, before: MembershipId) -> bool:
        """Whether who is in `before` leaves it now, and not after the step that was agreed.

        That was agreed by the members of the membership just before this one.
        """
        return self.after is None or before.round + 1 < self.id.round

    @property
    def world_size(self) -> int:
        """Processes over all members."""
        return sum(member.processes for member in self.members)
