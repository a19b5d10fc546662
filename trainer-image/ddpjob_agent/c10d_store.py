"""A c10d store that stock torch clients use as if it were torch's TCPStore server.

`Store` is the key space, `LocalBackend` lets requests wait for it, `serve_client` speaks to one
client. Every write returns the full resulting state of its key as an `Entry` with a version. Who
keeps the last entry of each key that it wrote can give them back to an empty store: of all that
come back, the highest version of each key is what the store held.

May not: listen, know agents or the service, keep anything on disk.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import re
from collections.abc import Iterable, Mapping
from typing import Any, Callable, Protocol

from . import c10d_protocol as protocol
from .c10d_protocol import BLOCKING, Op, ProtocolError, Request

log = logging.getLogger("ddpjob.c10d")

_INTEGER = re.compile(rb"\s*([+-]?)0*([0-9]{1,19})(?![0-9])")  # what C++'s stoll understands


@dataclasses.dataclass(frozen=True)
class Entry:
    """All there is under one key. No value and an empty queue: the key was deleted."""

    key: bytes
    version: int  # of the store's one counter: the higher, the later
    value: bytes | None = None
    queue: tuple[bytes, ...] = ()  # independent of the value, as in torch; oldest first

    def to_json(self) -> dict[str, Any]:
        """As it travels between service and agent."""
        return {
            "key": protocol.encode_base64((self.key,))[0],
            "version": self.version,
            "value": None if self.value is None else protocol.encode_base64((self.value,))[0],
            "queue": protocol.encode_base64(self.queue),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Entry:
        """Inverse of to_json()."""
        value = data["value"]
        return cls(
            key=protocol.decode_base64([data["key"]])[0],
            version=data["version"],
            value=None if value is None else protocol.decode_base64([value])[0],
            queue=protocol.decode_base64(data["queue"]),
        )


@dataclasses.dataclass(frozen=True)
class Applied:
    """What a request led to."""

    reply: bytes  # empty where torch's protocol has no answer
    changed: tuple[Entry, ...] = ()


class Store:
    """The key space: answers are torch's, time and connections are not its business."""

    def __init__(self) -> None:
        self._entries: dict[bytes, Entry] = {}  # deleted keys included, for late restore()
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
        """Do it now; None if it must wait, and then nothing was changed.

        BARRIER only asks whether enough have arrived: to arrive is to ADD 1.
        """
        handler = self._handlers.get(request.op)
        if handler is None:
            raise ProtocolError(f"{request.op.name} is not for the store")
        return handler(request)

    def restore(self, entries: Iterable[Entry]) -> tuple[Entry, ...]:
        """Take back what was written earlier, newest version of each key; returns what was new."""
        news: dict[bytes, Entry] = {}
        for entry in entries:
            if entry.version > self._entry(entry.key).version:
                self._entries[entry.key] = news[entry.key] = entry
                self._version = max(self._version, entry.version)
        return tuple(news.values())

    def entries(self) -> tuple[Entry, ...]:
        """Everything that restore() needs to make an equal store."""
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
        # As in torch, who overwrites the count with something else lets the others go.
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


class Backend(Protocol):
    """Answers the requests of c10d clients, here or elsewhere."""

    async def execute(self, request: Request) -> bytes:
        """The reply, once there is one; ProtocolError or OSError if there will be none.

        Gets neither VALIDATE, PING nor CANCEL_WAIT. A wait is ended by cancelling this.
        """
        ...


class _Waiter:
    def __init__(self, request: Request, missing: set[bytes]) -> None:
        self.request = request
        self.missing = missing
        self.done: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()


class LocalBackend:
    """A store in this process, with requests that wait for it. For one event loop."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiters: dict[bytes, dict[_Waiter, None]] = {}  # by missing key, oldest first

    async def execute(self, request: Request) -> bytes:
        """The reply, once there is one."""
        return (await self.apply(request)).reply

    async def apply(self, request: Request) -> Applied:
        """Like execute(), with what the request changed."""
        if request.op is Op.BARRIER:
            return await self._arrive(request)
        if request.op is Op.WAIT:
            return Applied(await self._wait(request))
        applied = self._store.apply(request)
        assert applied is not None
        self._wake(applied.changed)
        return applied

    def restore(self, entries: Iterable[Entry]) -> None:
        """Store.restore() for a store that clients may be waiting for already."""
        self._wake(self._store.restore(entries))

    async def _arrive(self, request: Request) -> Applied:
        arrival = await self.apply(Request(Op.ADD, request.keys, number=1))
        try:
            reply = await self._wait(request)
        except asyncio.CancelledError:
            # An agent whose connection broke asks again: it must not count twice.
            if self._store.apply(request) is None:
                self._store.apply(Request(Op.ADD, request.keys, number=-1))
            raise
        return dataclasses.replace(arrival, reply=reply)

    async def _wait(self, request: Request) -> bytes:
        applied = self._store.apply(request)
        if applied is not None:
            return applied.reply
        missing = {key for key in request.keys if self._store.apply(_only(request, key)) is None}
        waiter = _Waiter(request, missing)
        for key in missing:
            self._waiters.setdefault(key, {})[waiter] = None
        try:
            return await waiter.done
        finally:
            for key in tuple(waiter.missing):
                self._satisfy(waiter, key)

    def _wake(self, changed: Iterable[Entry]) -> None:
        """At once, not when the waiter's turn comes: the key may be deleted again by then."""
        for entry in changed:
            for waiter in tuple(self._waiters.get(entry.key, ())):
                applied = self._store.apply(_only(waiter.request, entry.key))
                if applied is None:
                    continue
                self._satisfy(waiter, entry.key)
                if not waiter.missing and not waiter.done.done():
                    waiter.done.set_result(applied.reply)
                    if entry.value is None:
                        break  # one waiter for each push: who else came would find nothing

    def _satisfy(self, waiter: _Waiter, key: bytes) -> None:
        waiter.missing.discard(key)
        waiters = self._waiters[key]
        del waiters[waiter]
        if not waiters:
            del self._waiters[key]


async def serve_client(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, backend: Backend
) -> None:
    """Serve one connection until it ends, or until its client breaks the protocol."""
    client = _Client(reader, writer, backend)
    try:
        await client.serve()
    except (ProtocolError, OSError) as error:
        log.info("c10d client dropped: %s", error)
    finally:
        writer.close()
        await client.end_wait()


class _Client:
    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, backend: Backend
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._backend = backend
        self._wait: asyncio.Task[None] | None = None

    async def serve(self) -> None:
        first = await protocol.read_request(self._reader)
        if first is None:
            return
        if first.op is not Op.VALIDATE:
            raise ProtocolError(f"{first.op.name} before VALIDATE")
        while True:
            request = await protocol.read_request(self._reader)
            if request is None:
                return
            if request.op in BLOCKING:
                await self._start_wait(request)
            else:
                self._writer.write(await self._answer(request))
                await self._writer.drain()

    async def _answer(self, request: Request) -> bytes:
        if request.op is Op.VALIDATE:
            raise ProtocolError("VALIDATE twice")
        if request.op is Op.PING:
            return protocol.encode_pong(request.number)
        if request.op is Op.CANCEL_WAIT:
            await self.end_wait()
            return protocol.WAIT_CANCELED
        return await self._backend.execute(request)

    async def _start_wait(self, request: Request) -> None:
        if self._wait is not None and not self._wait.done():
            raise ProtocolError(f"{request.op.name} while another request waits")
        self._wait = asyncio.create_task(self._answer_later(request))
        await asyncio.sleep(0)  # if it need not wait, answer before the next request

    async def _answer_later(self, request: Request) -> None:
        try:
            self._writer.write(await self._backend.execute(request))
        except (ProtocolError, OSError) as error:
            log.info("c10d client dropped: %s", error)
            self._writer.close()
        except Exception:
            self._writer.close()
            raise

    async def end_wait(self) -> None:
        if self._wait is None:
            return
        self._wait.cancel()
        await asyncio.wait({self._wait})
        if not self._wait.cancelled():
            self._wait.result()


def _only(request: Request, key: bytes) -> Request:
    return dataclasses.replace(request, keys=(key,))


def _parse_integer(text: bytes) -> int | None:
    match = _INTEGER.match(text)
    number = int(b"".join(match.groups())) if match else None
    return number if number is not None and -(2**63) <= number < 2**63 else None
