"""The server of stock c10d clients: requests that wait for a store, and a client's connection.

`StoreBackend` lets requests wait for a `Store` in this process. `serve_client` serves one client
over any `Backend`: a `StoreBackend`, or an agent's connection to the service.

May not: listen, know agents or the service.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Iterable
from typing import Protocol

from ddpjob_agent.c10d import protocol
from ddpjob_agent.c10d.protocol import BLOCKING, Op, ProtocolError, Request
from ddpjob_agent.c10d.store import Applied, Store

log = logging.getLogger("ddpjob.c10d")


class Backend(Protocol):
    """A local or remote store that answers the requests of c10d clients."""

    async def execute(self, request: Request) -> bytes:
        """Wait for the reply and return it; raise ProtocolError or OSError if there is none.

        VALIDATE, PING and CANCEL_WAIT never get here. Cancel this call to end a wait.
        """
        ...


class _Waiter:
    def __init__(self, request: Request, missing: set[bytes]) -> None:
        self.request = request
        self.missing = missing
        self.done: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()


class StoreBackend:
    """A store in this process with its waiting requests, for one event loop."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiters: dict[bytes, dict[_Waiter, None]] = {}  # waiters by missing key, oldest first

    async def execute(self, request: Request) -> bytes:
        """Wait for the reply and return it."""
        return (await self.apply(request)).reply

    async def apply(self, request: Request, writer: str = "") -> Applied:
        """Execute the request of a worker; return its reply and what it changed."""
        if request.op is Op.BARRIER:
            return await self._barrier(request, writer)
        if request.op is Op.WAIT:
            return Applied(await self._wait(request))
        applied = self._store.apply(request, writer)
        assert applied is not None
        self._wake(applied.changed)
        return applied

    async def _barrier(self, request: Request, writer: str) -> Applied:
        arrival = await self.apply(Request(Op.ADD, request.keys, number=1), writer)
        try:
            reply = await self._wait(request)
        except asyncio.CancelledError:
            # After a reconnect the agent sends the request again: it must not count twice.
            if self._store.apply(request) is None:
                self._store.apply(Request(Op.ADD, request.keys, number=-1), writer)
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

    def _wake(self, changed: Iterable[bytes]) -> None:
        """Answer waiters now: the key may be deleted before a waiter's task runs."""
        for key in changed:
            for waiter in tuple(self._waiters.get(key, ())):
                applied = self._store.apply(_only(waiter.request, key))
                if applied is None:
                    continue
                self._satisfy(waiter, key)
                if not waiter.missing and not waiter.done.done():
                    waiter.done.set_result(applied.reply)
                    if not self._store.has_value(key):
                        break  # one waiter for each push: the queue is empty for the next

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
        _log_dropped(error)
    finally:
        writer.close()
        await client.end_wait()


def _log_dropped(error: Exception) -> None:
    log.info("c10d client dropped: %s", str(error) or type(error).__name__)


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
        await asyncio.sleep(0)  # If no wait is needed, the answer precedes the next request.

    async def _answer_later(self, request: Request) -> None:
        try:
            self._writer.write(await self._backend.execute(request))
        except (ProtocolError, OSError) as error:
            _log_dropped(error)
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
