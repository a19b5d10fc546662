"""The memory that the c10d store of one membership may take, in all and for each member.

Counted are keys, values, items, open requests and answers that may get lost. Each has a fixed cost
beside its bytes, so that many small keys are bounded, too.

May not: wait, know requests or the service.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

from ddpjob_agent.c10d.protocol import ProtocolError

MIB = 1 << 20
UNKNOWN_MEMORY = 1024 * MIB
MOST_MEMORY = 16 * 1024 * MIB  # a pod without a limit has that of its node
KEY_BYTES = 1024  # of a key beside its name and value; also of its holders
ITEM_BYTES = 256  # of an item in a queue
ANSWER_BYTES = 512  # of each write in an answer that may get lost
OPEN_BYTES = 4096  # of an open request


class Limits(NamedTuple):
    """Bytes that a store may take, in all and of one member's keys."""

    total: int
    member: int


NO_LIMITS = Limits(sys.maxsize, sys.maxsize)


def limits_for(memory: int | None) -> Limits:
    """Return the limits for a service with this memory, of which it needs the rest itself."""
    memory = min(memory or UNKNOWN_MEMORY, MOST_MEMORY)
    return Limits(memory * 3 // 8, memory // 4)


class StoreFullError(ProtocolError):
    """A request would exceed the limits."""


class Hold:
    """Bytes that count for a member until they are released."""

    def __init__(self, budget: Budget, member: str) -> None:
        self._budget = budget
        self._member = member
        self._size = 0

    def add(self, what: str, size: int) -> None:
        """Count more bytes; raise StoreFullError, and count nothing, if that is too much."""
        self._budget.check(self._member, what, size, size, is_request=True)
        self._budget.count(self._member, size)
        self._size += size

    def release(self) -> None:
        """Count these bytes no more."""
        self._budget.count(self._member, -self._size)
        self._size = 0


class Budget:
    """The bytes that count for each member, and their limits.

    What counts for the member "" is of no worker: only the limit of all bounds it.
    """

    def __init__(self, limits: Limits = NO_LIMITS) -> None:
        self.limits = limits
        self._counted: dict[str, int] = {}
        self._total = 0

    def counted(self, member: str) -> int:
        """Return the bytes that count for this member."""
        return self._counted.get(member, 0)

    def count(self, member: str, size: int) -> None:
        """Count bytes for a member; fewer if the size is negative."""
        self._total += size
        left = self.counted(member) + size
        if left:
            self._counted[member] = left
        else:
            self._counted.pop(member, None)

    def check(
        self, member: str, what: str, own: int, growth: int, *, is_request: bool = False
    ) -> None:
        """Raise StoreFullError if the member may not take this much more, or all together.

        Requests may take a quarter more, so that a full store still executes deletions.
        """
        counted, total = self.counted(member), self._total
        if is_request:
            counted, total = counted - self.limits.member // 4, total - self.limits.total // 4
        if member and own > 0 and counted + own > self.limits.member:
            found = f"{member} has {_mib(self.counted(member))} of {_mib(self.limits.member)}"
        elif growth > 0 and total + growth > self.limits.total:
            found = f"all workers have {_mib(self._total)} of {_mib(self.limits.total)}"
        else:
            return
        raise StoreFullError(
            f"the c10d store is full: {found}, and {what} needs {_mib(max(own, growth))} more."
            f" Each key counts {KEY_BYTES} bytes beside its name and value. Delete keys that no"
            " process needs, or raise spec.rendezvous.resources.limits.memory"
        )


def _mib(size: int) -> str:
    return f"{size / MIB:.1f} MiB"
