"""The workers that train together, in the order of their ranks."""

from __future__ import annotations

import dataclasses
import enum
import functools
import re
from typing import NamedTuple

_IDENTITY = re.compile(r"[0-9]{1,18}(\.[0-9]{1,18}){2}")


class Cause(str, enum.Enum):
    """The one cause of a membership: the gravest event that led to it."""

    STARTED = "started"
    LOST = "lost"
    FAILED = "failed"
    LEFT = "left"
    JOINED = "joined"

    def __str__(self) -> str:
        return self.value


class MembershipId(NamedTuple):
    """Identity of a membership. A worker with a lower identity than the current is fenced."""

    term: int  # counts rendezvous pods
    boot: int  # counts starts of that pod's container
    round: int  # counts memberships, over all terms

    def __str__(self) -> str:
        return f"{self.term}.{self.boot}.{self.round}"

    @classmethod
    def parse(cls, text: str) -> MembershipId:
        """Return the identity that str() printed; raise ValueError for any other text."""
        if _IDENTITY.fullmatch(text) is None:
            raise ValueError(f"{text[:40]!r} is not an identity of a membership, such as 1.1.1")
        return cls(*map(int, text.split(".")))


@dataclasses.dataclass(frozen=True)
class Member:
    """One worker in a membership: a pod with its process count."""

    worker: str
    incarnation: str  # new for every agent process
    address: str
    processes: int


@dataclasses.dataclass(frozen=True)
class Membership:
    """The ordered workers of one membership; the order gives ranks, survivors first."""

    id: MembershipId
    members: tuple[Member, ...]
    cause: Cause
    detail: str  # workers that joined, left or were lost, for people
    failures: int = 0  # application failures so far; agents keep the count, the service may restart
    failure_times: tuple[int, ...] = ()  # of the last ones; seconds since the epoch
    losses: int = 0  # memberships formed because a worker was lost
    after: int | None = None  # last step of the membership before; None: all stop at once
    snapshot_step: int | None = None  # the newest snapshot when it was formed
    repeated_steps: int = 0  # steps repeated before this membership

    def stops_at_once(self, before: MembershipId) -> bool:
        """Return whether a member of `before` leaves at once, not after the agreed last step.

        Only the members of the membership just before this one agreed on the last step.
        """
        return self.after is None or before.round + 1 < self.id.round

    def worker_of(self, rank: int) -> str:
        """Return the worker with a rank in the order of the members; empty if there is none."""
        workers = [each.worker for each in self.members for _ in range(each.processes)]
        return workers[rank] if rank < len(workers) else ""

    @functools.cached_property
    def by_worker(self) -> dict[str, Member]:
        """The members by the names of their workers."""
        return {member.worker: member for member in self.members}

    def has(self, member: Member) -> bool:
        """Return whether this incarnation of a worker is a member."""
        return self.by_worker.get(member.worker) == member

    @property
    def world_size(self) -> int:
        """Number of processes of all members."""
        return sum(member.processes for member in self.members)
