"""The writes of one worker, from which a service that was started again rebuilds its store.

Each write has a version from one counter of the store. An answer has only the version; the worker
knows the rest from its request. So an answer does not grow with the value of a key, and a write
that adds to a value or a queue is kept alone.

May not: wait, open a connection, know agents or the service.
"""

from __future__ import annotations

import dataclasses
import enum
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from ddpjob_agent.c10d.budget import ITEM_BYTES
from ddpjob_agent.c10d.protocol import Op
from ddpjob_protocol.codec import DecodeError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ddpjob_agent.c10d.protocol import Request

MAX_VERSION = 2**62


class Kind(enum.IntEnum):
    """Effect of a write on its key."""

    VALUE = 0  # replaces the value; deletes it if there is no data
    APPEND = 1  # adds to the value
    PUSH = 2  # adds an item to the queue
    POP = 3  # removes the items up to its version from the queue


@dataclasses.dataclass(frozen=True)
class Write:
    """One write. The version of a POP is that of the item that it removed."""

    kind: Kind
    key: bytes
    version: int
    data: bytes | None = None


class Forget(NamedTuple):
    """Part of a key that no worker needs."""

    below: int  # all that was written to the value before this version
    upto: int  # items of the queue up to this version, and POPs before it


@dataclasses.dataclass(frozen=True)
class Forgotten:
    """A request of the service to forget a part of a key, and the answer of the worker."""

    key: bytes
    below: int
    upto: int
    left: bool = False  # the worker still keeps other writes of the key


def writes_of(request: Request, version: int, total: int = 0) -> tuple[Write, ...]:
    """Return the writes of an executed request from the version of the first one.

    `total` is the number that ADD or BARRIER has written.
    """
    op, keys = request.op, request.keys
    if not version:
        return ()
    if op in (Op.SET, Op.MULTI_SET):
        pairs = enumerate(zip(keys, request.values))
        return tuple(Write(Kind.VALUE, k, version + at, value) for at, (k, value) in pairs)
    if op is Op.QUEUE_POP:
        return (Write(Kind.POP, keys[0], version),)
    if op is Op.DELETE_KEY:
        return (Write(Kind.VALUE, keys[0], version),)
    if op in (Op.ADD, Op.BARRIER):
        return (Write(Kind.VALUE, keys[0], version, b"%d" % total),)
    kind = {Op.COMPARE_SET: Kind.VALUE, Op.APPEND: Kind.APPEND, Op.QUEUE_PUSH: Kind.PUSH}[op]
    return (Write(kind, keys[0], version, request.values[-1]),)


def check_write(write: Write) -> Write:
    """Return a write that a worker sent; raise DecodeError if it is odd."""
    lacks_data = write.data is None and write.kind in (Kind.APPEND, Kind.PUSH)
    if not 0 < write.version < MAX_VERSION or lacks_data:
        raise DecodeError(f"write of version {write.version} without data or with an odd version")
    return write


class _Kept:
    """The writes of one key."""

    def __init__(self) -> None:
        self.values: list[Write] = []  # a VALUE comes first
        self.pop: Write | None = None
        self.pushes: deque[Write] = deque()  # in the order of versions
        self.size = 0  # bytes

    def __iter__(self) -> Iterator[Write]:
        yield from self.values
        yield from self.pushes
        if self.pop:
            yield self.pop

    def add(self, write: Write) -> None:
        if write.kind is Kind.PUSH:
            later = []
            while self.pushes and self.pushes[-1].version > write.version:
                later.append(self.pushes.pop())
            self.pushes.append(write)
            self.pushes.extend(reversed(later))
            self.size += _size(write)
            if self.pop:
                self.forget(Forget(0, self.pop.version))
        elif write.kind is Kind.POP:
            if self.pop is None or self.pop.version < write.version:
                self.pop = write
            self.forget(Forget(0, write.version))
        elif not (self.values and _replaces(self.values[0], write)):
            self.values.append(write)
            self.size += _size(write)
            if write.kind is Kind.VALUE:
                self.forget(Forget(write.version, 0))

    def forget(self, what: Forget) -> None:
        if what.below:
            self.size -= sum(_size(each) for each in self.values if each.version < what.below)
            left = (each for each in self.values if each.version >= what.below)
            self.values = sorted(left, key=lambda each: each.version)
        while self.pushes and self.pushes[0].version <= what.upto:
            self.size -= _size(self.pushes.popleft())
        if self.pop and self.pop.version < what.upto:
            self.pop = None


class OwnWrites:
    """The writes of one worker that the store still consists of, as far as the worker knows."""

    def __init__(self) -> None:
        self._keys: dict[bytes, _Kept] = {}
        self.size = 0  # bytes

    def add(self, write: Write) -> None:
        """Keep a write, and drop those that it replaces. The order of the calls does not matter."""
        kept = self._keys.setdefault(write.key, _Kept())
        self.size -= kept.size
        kept.add(write)
        self.size += kept.size

    def forget(self, key: bytes, what: Forget) -> bool:
        """Drop what is not needed of a key; return whether something of it is left."""
        kept = self._keys.get(key)
        if kept is None:
            return False
        self.size -= kept.size
        kept.forget(what)
        self.size += kept.size
        if any(True for _ in kept):
            return True
        del self._keys[key]
        return False

    def clear(self) -> None:
        """Drop all writes."""
        self._keys.clear()
        self.size = 0

    def __iter__(self) -> Iterator[Write]:
        for kept in self._keys.values():
            yield from kept


def _size(write: Write) -> int:
    return ITEM_BYTES + len(write.key) + len(write.data or b"")


def _replaces(base: Write, write: Write) -> bool:
    return base.kind is Kind.VALUE and base.version > write.version
