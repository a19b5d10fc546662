"""The key space of a c10d store: torch's answers, and a version for every write.

Every write returns the full resulting state of its key as an `Entry` with a version. Each writer
keeps the last entry of each key that it wrote, and can restore these entries to an empty store.
The highest version of each key that the writers restore is the state that the store held.

May not: wait, open a connection, know agents or the service, keep anything on disk.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from typing import Callable

from ddpjob_agent.c10d import protocol
from ddpjob_agent.c10d.protocol import Op, ProtocolError, Request

_DIGITS = re.compile(rb"[0-9]{0,19}(?![0-9])")


@dataclasses.dataclass(frozen=True)
class Entry:
    """The state of one key. No value and an empty queue mean that the key was deleted."""

    key: bytes
    version: int  # from one counter of the store: a higher version is later
    value: bytes | None = None
    queue: tuple[bytes, ...] = ()  # independent of the value, as in torch; oldest first


@dataclasses.dataclass(frozen=True)
class Applied:
    """The result of a request."""

    reply: bytes  # empty if torch's protocol has no answer
    changed: tuple[Entry, ...] = ()


class Store:
    """A key space with torch's answers, without time and connections."""

    def __init__(self) -> None:
        self._entries: dict[bytes, Entry] = {}  # with deleted keys, for a late restore()
        self._version = 0
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

    def apply(self, request: Request) -> Applied | None:
        """Execute the request; return None, without a change, if the request must wait.

        BARRIER only checks the number of arrivals: the caller adds 1 to arrive.
        """
        handler = self._handlers.get(request.op)
        if handler is None:
            raise ProtocolError(f"{request.op.name} is not for the store")
        return handler(request)

    def restore(self, entries: Iterable[Entry]) -> tuple[Entry, ...]:
        """Restore entries, the newest version of each key; return the entries that were new."""
        news: dict[bytes, Entry] = {}
        for entry in entries:
            if entry.version > self._entry(entry.key).version:
                self._entries[entry.key] = news[entry.key] = entry
                self._version = max(self._version, entry.version)
        return tuple(news.values())

    def entries(self) -> tuple[Entry, ...]:
        """Return the entries from which restore() makes an equal store."""
        return tuple(self._entries.values())

    def _entry(self, key: bytes) -> Entry:
        return self._entries.get(key) or Entry(key, version=0)

    def _write(self, key: bytes, value: bytes | None, queue: tuple[bytes, ...]) -> Entry:
        self._version += 1
        entry = self._entries[key] = Entry(key, self._version, value, queue)
        return entry

    def _write_value(self, key: bytes, value: bytes | None) -> Entry:
        return self._write(key, value, self._entry(key).queue)

    def _is_ready(self, key: bytes) -> bool:
        entry = self._entry(key)
        return entry.value is not None or bool(entry.queue)

    def _set(self, request: Request) -> Applied:
        pairs = zip(request.keys, request.values)
        return Applied(b"", tuple(self._write_value(key, value) for key, value in pairs))

    def _compare_set(self, request: Request) -> Applied:
        (key,), (expected, desired) = request.keys, request.values
        current = self._entry(key).value
        if current == expected or (current is None and not expected):
            return Applied(protocol.encode_bytes(desired), (self._write_value(key, desired),))
        return Applied(protocol.encode_bytes(expected if current is None else current))

    def _get(self, request: Request) -> Applied:
        values = (self._entry(key).value or b"" for key in request.keys)
        return Applied(b"".join(map(protocol.encode_bytes, values)))

    def _add(self, request: Request) -> Applied:
        (key,) = request.keys
        current = self._entry(key).value
        number = 0 if current is None else _parse_integer(current)
        if number is None:
            raise ProtocolError("ADD to what is no 64-bit integer")
        total = (number + request.number + 2**63) % 2**64 - 2**63
        entry = self._write_value(key, str(total).encode())
        return Applied(protocol.encode_integer(total), (entry,))

    def _check(self, request: Request) -> Applied:
        ready = all(map(self._is_ready, request.keys))
        return Applied(protocol.READY if ready else protocol.NOT_READY)

    def _wait(self, request: Request) -> Applied | None:
        ready = all(map(self._is_ready, request.keys))
        return Applied(protocol.STOP_WAITING) if ready else None

    def _barrier(self, request: Request) -> Applied | None:
        arrived = self._entry(request.keys[0]).value or b"0"
        number = _parse_integer(arrived)
        # As in torch, a client that overwrites the count with another value releases the barrier.
        waits = number is not None and number < request.number
        return None if waits else Applied(protocol.STOP_WAITING)

    def _keys(self) -> tuple[bytes, ...]:
        return tuple(key for key, entry in self._entries.items() if entry.value is not None)

    def _count_keys(self, _request: Request) -> Applied:
        return Applied(protocol.encode_integer(len(self._keys())))

    def _list_keys(self, _request: Request) -> Applied:
        keys = self._keys()
        listed = b"".join(map(protocol.encode_bytes, keys))
        return Applied(protocol.encode_integer(len(keys)) + listed)

    def _delete(self, request: Request) -> Applied:
        (key,) = request.keys
        if self._entry(key).value is None:
            return Applied(protocol.encode_integer(0))
        return Applied(protocol.encode_integer(1), (self._write_value(key, None),))

    def _append(self, request: Request) -> Applied:
        (key,), (suffix,) = request.keys, request.values
        return Applied(b"", (self._write_value(key, (self._entry(key).value or b"") + suffix),))

    def _push(self, request: Request) -> Applied:
        entry = self._entry(request.keys[0])
        return Applied(b"", (self._write(entry.key, entry.value, entry.queue + request.values),))

    def _pop(self, request: Request) -> Applied:
        entry = self._entry(request.keys[0])
        length = protocol.encode_integer(len(entry.queue))
        if not entry.queue:
            return Applied(length)
        rest = self._write(entry.key, entry.value, entry.queue[1:])
        return Applied(length + protocol.encode_bytes(entry.queue[0]), (rest,))

    def _queue_length(self, request: Request) -> Applied:
        return Applied(protocol.encode_integer(len(self._entry(request.keys[0]).queue)))


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
