"""The key space of a c10d store: torch's answers, and a version for every write.

A store is rebuilt from the writes of its writers (`writes`). Each key counts for the worker that
created it or replaced its value last (`budget`); what others add to it counts for the same worker.

May not: wait, open a connection, know agents or the service, keep anything on disk.
"""

from __future__ import annotations

import dataclasses
import re
from collections import deque
from typing import TYPE_CHECKING, Callable

from ddpjob_agent.c10d import protocol
from ddpjob_agent.c10d.budget import ITEM_BYTES, KEY_BYTES, Budget
from ddpjob_agent.c10d.protocol import MAX_BYTES, Op, ProtocolError, Request
from ddpjob_agent.c10d.writes import Kind, Write

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_DIGITS = re.compile(rb"[0-9]{0,19}(?![0-9])")
_TOO_LONG = f"more than {MAX_BYTES} bytes for one answer; use smaller values or more keys"


@dataclasses.dataclass(frozen=True)
class Applied:
    """The result of a request."""

    reply: bytes  # empty if torch's protocol has no answer
    version: int = 0  # of the first write; 0: the request has changed nothing
    total: int = 0  # the number that ADD has written
    changed: tuple[bytes, ...] = ()  # keys


class _Key:
    """The state of one key. The queue is independent of the value, as in torch."""

    __slots__ = ("base", "owner", "queue", "size", "value")

    def __init__(self) -> None:
        self.owner = ""  # the worker that it counts for
        self.size = 0  # as it counts
        self.base = 0  # version of the write that replaced the value last
        self.value: bytes | bytearray | None = None  # a bytearray once it grows
        self.queue: deque[tuple[int, bytes]] = deque()  # each item with its version; oldest first

    def extend(self, suffix: bytes) -> None:
        if not isinstance(self.value, bytearray):
            self.value = bytearray(self.value or b"")
        self.value += suffix

    @property
    def is_dead(self) -> bool:
        return self.value is None and not self.queue


_ABSENT = _Key()


class Store:
    """A key space with torch's answers, without time and connections."""

    def __init__(
        self, writes: Iterable[Write] = (), version: int = 0, budget: Budget | None = None
    ) -> None:
        """Restore all writes that are left of an earlier store; `version` is its newest one."""
        self._budget = budget or Budget()
        self._writer, self._op = "", Op.SET  # of the request that is executed
        self._keys: dict[bytes, _Key] = {}  # with deleted keys, until `forget`
        self._version = version
        self._handlers: dict[Op, Callable[[Request], Applied | None]] = {
            Op.SET: self._set,
            Op.MULTI_SET: self._set,
            Op.COMPARE_SET: self._compare_set,
            Op.GET: self._get,
            Op.MULTI_GET: self._get,
            Op.ADD: self._add,
            Op.CHECK: self._check,
            Op.WAIT: self._wait,
            Op.BARRIER: self._barrier,
            Op.GETNUMKEYS: self._count_keys,
            Op.LIST_KEYS: self._list_keys,
            Op.DELETE_KEY: self._delete,
            Op.APPEND: self._append,
            Op.QUEUE_PUSH: self._push,
            Op.QUEUE_POP: self._pop,
            Op.QUEUE_LEN: self._queue_length,
        }
        self._restore(writes)

    def apply(self, request: Request, writer: str = "") -> Applied | None:
        """Execute the request; return None, without a change, if the request must wait.

        Raise ProtocolError, without a change, if the store is full or the request invalid.
        BARRIER only checks the number of arrivals: the caller adds 1 to arrive.
        """
        self._writer, self._op = writer, request.op
        handler = self._handlers.get(request.op)
        if handler is None:
            raise ProtocolError(f"{request.op.name} is not for the store")
        return handler(request)

    def forget_if_dead(self, key: bytes, version: int) -> bool:
        """Drop a key without value and items; return False if it lives or has a newer write."""
        found = self._keys.get(key, _ABSENT)
        if not found.is_dead or found.base > version:
            return False
        self._keys.pop(key, None)
        self._budget.count(found.owner, -found.size)
        found.size = 0
        return True

    def has_value(self, key: bytes) -> bool:
        """Return whether the key has a value, and not only items in its queue."""
        return self._find(key).value is not None

    def __len__(self) -> int:
        return len(self._keys)

    def _restore(self, writes: Iterable[Write]) -> None:
        popped: dict[bytes, int] = {}
        for write in sorted(writes, key=lambda each: each.version):
            entry = self._keys.setdefault(write.key, _Key())
            if write.kind is Kind.VALUE:
                entry.base = write.version
                entry.value = write.data
            elif write.kind is Kind.APPEND:
                entry.extend(write.data or b"")
            elif write.kind is Kind.PUSH:
                entry.queue.append((write.version, write.data or b""))
            else:
                popped[write.key] = write.version
            self._version = max(self._version, write.version)
        for key, version in popped.items():
            queue = self._keys[key].queue
            while queue and queue[0][0] <= version:
                queue.popleft()
        for key, entry in self._keys.items():
            entry.size = _size(key, entry.value) + sum(ITEM_BYTES + len(i) for _, i in entry.queue)
            self._budget.count("", entry.size)

    def _find(self, key: bytes) -> _Key:
        return self._keys.get(key, _ABSENT)

    def _next(self) -> int:
        self._version += 1
        return self._version

    def _take(self, owner: str, growths: Mapping[bytes, int]) -> None:
        """Count keys for this owner, each grown by a number of bytes; create those that are new."""
        found = {key: self._find(key) for key in growths}
        foreign = sum(each.size for each in found.values() if each.owner != owner)
        new = sum(KEY_BYTES + len(key) for key in found if key not in self._keys)
        growth = sum(growths.values()) + new
        what = f"{self._op.name} of {len(growths)} keys" if len(growths) > 1 else self._op.name
        self._budget.check(owner, what, growth + foreign, growth)
        for key, size in growths.items():
            entry = self._keys.setdefault(key, _Key())
            self._budget.count(entry.owner, -entry.size)
            entry.owner, entry.size = owner, (entry.size or KEY_BYTES + len(key)) + size
            self._budget.count(owner, entry.size)

    def _grow(self, key: bytes, size: int) -> None:
        """Count more or fewer bytes of one key for its owner."""
        found = self._keys.get(key)
        self._take(found.owner if found else self._writer, {key: size})

    def _replace(self, values: Mapping[bytes, bytes]) -> None:
        """Count new values of keys for their writer."""
        sizes = {
            key: len(value) - len(self._find(key).value or b"") for key, value in values.items()
        }
        self._take(self._writer, sizes)

    def _write(self, key: bytes, value: bytes | None) -> int:
        entry = self._keys.setdefault(key, _Key())
        entry.base = self._next()
        entry.value = value
        return entry.base

    def _is_ready(self, key: bytes) -> bool:
        return not self._find(key).is_dead

    def _set(self, request: Request) -> Applied:
        self._replace(dict(zip(request.keys, request.values)))
        pairs = zip(request.keys, request.values)
        versions = [self._write(key, value) for key, value in pairs]
        return Applied(b"", versions[0] if versions else 0, changed=request.keys)

    def _compare_set(self, request: Request) -> Applied:
        (key,), (expected, desired) = request.keys, request.values
        current = self._find(key).value
        if current == expected or (current is None and not expected):
            self._replace({key: desired})
            version = self._write(key, desired)
            return Applied(protocol.encode_bytes(desired), version, changed=request.keys)
        return Applied(protocol.encode_bytes(expected if current is None else bytes(current)))

    def _get(self, request: Request) -> Applied:
        values = [self._find(key).value or b"" for key in request.keys]
        if sum(map(len, values)) > MAX_BYTES:
            raise ProtocolError(f"the values of {len(values)} keys have {_TOO_LONG}")
        return Applied(b"".join(map(protocol.encode_bytes, values)))

    def _add(self, request: Request) -> Applied:
        (key,) = request.keys
        current = self._find(key).value
        number = 0 if current is None else _parse_integer(bytes(current))
        if number is None:
            raise ProtocolError("ADD to what is not a 64-bit integer")
        total = (number + request.number + 2**63) % 2**64 - 2**63
        text = b"%d" % total
        self._replace({key: text})
        version = self._write(key, text)
        return Applied(protocol.encode_integer(total), version, total, request.keys)

    def _check(self, request: Request) -> Applied:
        ready = all(map(self._is_ready, request.keys))
        return Applied(protocol.READY if ready else protocol.NOT_READY)

    def _wait(self, request: Request) -> Applied | None:
        ready = all(map(self._is_ready, request.keys))
        return Applied(protocol.STOP_WAITING) if ready else None

    def _barrier(self, request: Request) -> Applied | None:
        arrived = self._find(request.keys[0]).value
        number = 0 if not arrived else _parse_integer(bytes(arrived))
        # As in torch, a client that overwrites the count with another value releases the barrier.
        waits = number is not None and number < request.number
        return None if waits else Applied(protocol.STOP_WAITING)

    def _present(self) -> tuple[bytes, ...]:
        return tuple(key for key, entry in self._keys.items() if entry.value is not None)

    def _count_keys(self, _request: Request) -> Applied:
        return Applied(protocol.encode_integer(len(self._present())))

    def _list_keys(self, _request: Request) -> Applied:
        keys = self._present()
        if sum(map(len, keys)) > MAX_BYTES:
            raise ProtocolError(f"the names of {len(keys)} keys have {_TOO_LONG}")
        listed = b"".join(map(protocol.encode_bytes, keys))
        return Applied(protocol.encode_integer(len(keys)) + listed)

    def _delete(self, request: Request) -> Applied:
        (key,) = request.keys
        value = self._find(key).value
        if value is None:
            return Applied(protocol.encode_integer(0))
        self._grow(key, -len(value))
        return Applied(protocol.encode_integer(1), self._write(key, None), changed=request.keys)

    def _append(self, request: Request) -> Applied:
        (key,), (suffix,) = request.keys, request.values
        size = len(self._find(key).value or b"") + len(suffix)
        if size > MAX_BYTES:
            raise ProtocolError(f"APPEND makes a value of {size} bytes, {_TOO_LONG}")
        self._grow(key, len(suffix))
        self._keys[key].extend(suffix)
        return Applied(b"", self._next(), changed=request.keys)

    def _push(self, request: Request) -> Applied:
        (key,), (item,) = request.keys, request.values
        self._grow(key, ITEM_BYTES + len(item))
        version = self._next()
        self._keys[key].queue.append((version, item))
        return Applied(b"", version, changed=request.keys)

    def _pop(self, request: Request) -> Applied:
        queue = self._find(request.keys[0]).queue
        length = protocol.encode_integer(len(queue))
        if not queue:
            return Applied(length)
        version, item = queue.popleft()
        self._grow(request.keys[0], -ITEM_BYTES - len(item))
        return Applied(length + protocol.encode_bytes(item), version, changed=request.keys)

    def _queue_length(self, request: Request) -> Applied:
        return Applied(protocol.encode_integer(len(self._find(request.keys[0]).queue)))


def _size(key: bytes, value: bytes | bytearray | None) -> int:
    return KEY_BYTES + len(key) + len(value or b"")


def _parse_integer(text: bytes) -> int | None:
    """Return the number that C++'s stoll reads; None if there is none of 64 bits."""
    unsigned = text.lstrip()
    sign = unsigned[:1] if unsigned[:1] in (b"+", b"-") else b""
    padded = unsigned[len(sign) :]
    digits = padded.lstrip(b"0")
    match = _DIGITS.match(digits)
    if match is None or not (match[0] or len(digits) < len(padded)):
        return None
    number = int(sign + (match[0] or b"0"))
    return number if -(2**63) <= number < 2**63 else None
