"""The agent's connection to the rendezvous service: it reconnects and resends open requests.

It sends requests to the c10d store of the current membership. It keeps the last entry of every key
that this agent wrote, so that a restarted service can restore its store. It knows no processes.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import logging
import random
import time
from typing import TYPE_CHECKING, Callable

from ddpjob_agent.c10d.store import Entry
from ddpjob_agent.net.framing import (
    Connection,
    FramingError,
    RejectedError,
    WrongTokenError,
    connect,
)
from ddpjob_protocol.codec import decode, encode
from ddpjob_protocol.order_delta import RunOrders

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from ddpjob_agent.c10d.protocol import Request
    from ddpjob_protocol.messages import Message

BEAT_SECONDS = 1.0
SILENCE_SECONDS = 10.0  # without a message from the service for this time, reconnect
# Seconds; first and longest pause between attempts. Only a session that has answered a heartbeat
# shortens the pause: a service may accept an agent and end each of its sessions at once.
RETRY_SECONDS = (0.05, 1.0)
# Seconds; first and longest attempt. While the service moves to another pod, packets to the old
# pod may be dropped, and only a new connection gets the new address.
ATTEMPT_SECONDS = (2.0, 10.0)

# Time in which a wrong token is retried: the address may have belonged to another job before.
STRANGER_SECONDS = 10.0

log = logging.getLogger("ddpjob.link")


class StaleMembershipError(ConnectionError):
    """The membership that a request belongs to is no longer the current one."""

    def __init__(self, membership: str) -> None:
        super().__init__(f"its membership {membership} is no longer the current one")


class _Pending:
    def __init__(self, message: Message) -> None:
        self.message = message
        self.answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()


class ServiceConnection:
    """The connection to the service: `hello` registers the agent, `beat` reports its processes."""

    def __init__(
        self,
        host: str,
        port: int,
        token: str,
        hello: Callable[[], Message],
        receive: Callable[[Message], None],
        beat: Callable[[], Message] = dict,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`pause` waits for some seconds before the next attempt to connect."""
        self._address = (host, port)
        self._token = token
        self._hello = hello
        self._receive = receive
        self._words = beat
        self._pause = pause
        self._connection: Connection | None = None
        self._pending: dict[int, _Pending] = {}
        self._numbers = itertools.count(1)
        self._entries: dict[bytes, Entry] = {}
        self.membership = ""  # membership whose store gets the requests
        self._holds = False  # if the membership is stale, its requests block
        self._left = asyncio.Event()  # set when the membership is no longer bound
        self._is_over = False  # the service has ended the job
        self._has_lasted = False  # the session: it has answered a heartbeat
        self.last_received = time.monotonic()

    def bind_store(self, membership: str, *, block_stale_requests: bool = False) -> None:
        """Send requests to this membership's store; requests to an older store fail.

        `block_stale_requests`: if this membership is stale, requests block until it is unbound.
        """
        if (membership, block_stale_requests) == (self.membership, self._holds):
            return
        self._holds = block_stale_requests
        self._left.set()
        self._left = asyncio.Event()
        if membership == self.membership:
            return
        self.membership = membership
        self._entries.clear()
        for pending in self._pending.values():
            if not pending.answer.done():
                stale = StaleMembershipError(pending.message["membership"])
                pending.answer.set_exception(stale)

    def unbind_store(self, membership: str) -> None:
        """Unbind the store of this membership, if it is bound."""
        if membership == self.membership:
            self.bind_store("")

    @property
    def connected(self) -> bool:
        """True if a connection is open."""
        return self._connection is not None

    def reconnect(self) -> None:
        """Reconnect, because the content of the hello message has changed."""
        if self._connection is not None:
            self._connection.close()

    def send(self, message: Message) -> None:
        """Send if connected; a message that must not get lost belongs in hello, too."""
        if self._connection is not None:
            self._connection.send(message)

    async def execute(self, request: Request, membership: str) -> bytes:
        """Execute a store request over reconnections; raise StaleMembershipError if it is stale."""
        if membership != self.membership:
            raise StaleMembershipError(membership)
        left = self._left
        number = next(self._numbers)
        message = {
            "type": "store",
            "id": number,
            "membership": membership,
            "request": encode(request),
        }
        pending = self._pending[number] = _Pending(message)
        self.send(message)
        try:
            answer = await pending.answer
        except asyncio.CancelledError:
            self.send({"type": "cancel", "id": number})
            raise
        finally:
            del self._pending[number]
        if answer.get("overtaken") and self._holds and membership == self.membership:
            await left.wait()
        if "reply" not in answer:
            raise StaleMembershipError(membership)
        return base64.b64decode(answer["reply"])

    async def run(self) -> None:
        """Stay connected until cancelled; raise RejectedError if the service rejects this agent."""
        pause, timeout = RETRY_SECONDS[0], ATTEMPT_SECONDS[0]
        rejected_since: float | None = None
        while True:
            try:
                connection = await connect(*self._address, self._token, timeout)
            except (OSError, FramingError, WrongTokenError) as error:
                if not isinstance(error, WrongTokenError):
                    rejected_since = None
                elif rejected_since is None:
                    rejected_since = time.monotonic()
                elif time.monotonic() - rejected_since > STRANGER_SECONDS:
                    raise
                log.debug("no rendezvous service: %r", error)
                timeout = min(1.5 * timeout, ATTEMPT_SECONDS[1])
            else:
                timeout, rejected_since = ATTEMPT_SECONDS[0], None
                if await self._run_logged(connection):
                    pause = RETRY_SECONDS[0]
            await self._pause(pause * random.uniform(0.5, 1.0))  # noqa: S311 - no secret
            pause = min(2 * pause, RETRY_SECONDS[1])

    async def _run_logged(self, connection: Connection) -> bool:
        """Run a session to its end; return whether it has lasted."""
        self._has_lasted = False
        try:
            await self._run_session(connection)
        except FramingError as error:
            log.warning("the rendezvous service sent an invalid frame: %s", error)
        finally:
            self._connection = None
            connection.close()
        if not self._is_over:
            log.info("connection to the rendezvous service lost; trying again")
        return self._has_lasted

    async def _run_session(self, connection: Connection) -> None:
        hello = self._hello()
        is_current = (hello["membership"] or {}).get("id") == self.membership
        entries = [encode(entry) for entry in self._entries.values()] if is_current else []
        connection.send({"type": "hello", **hello, "entries": entries, "deltas": True})
        self._connection = connection
        for pending in list(self._pending.values()):
            connection.send(pending.message)
        loop, orders = asyncio.get_running_loop(), RunOrders()
        beats = asyncio.ensure_future(self._send_heartbeats(connection))
        silence = loop.call_later(SILENCE_SECONDS, self._abort, connection)
        try:
            while True:
                message = await connection.receive()
                silence.cancel()
                silence = loop.call_later(SILENCE_SECONDS, self._abort, connection)
                if message is None:
                    return
                self.last_received = time.monotonic()
                if message["type"] == "refused":
                    raise RejectedError(
                        f"{message['reason']}; use an agent of the service's version"
                    )
                if message["type"] == "stored":
                    self._on_store_reply(message)
                elif message["type"] == "beat":
                    self._has_lasted = True
                elif message["type"] != "probe":
                    self._is_over = message["type"] == "finish"
                    self._receive(orders.complete(message))
        finally:
            silence.cancel()
            beats.cancel()

    @staticmethod
    def _abort(connection: Connection) -> None:
        log.warning("the rendezvous service has been silent for %.0f s", SILENCE_SECONDS)
        connection.close()

    def _on_store_reply(self, message: Message) -> None:
        pending = self._pending.get(message["id"])
        if pending is None:
            return
        if pending.message["membership"] == self.membership:
            for item in message.get("entries", ()):
                entry = decode(Entry, item)
                self._entries[entry.key] = entry
        if not pending.answer.done():
            pending.answer.set_result(message)

    async def _send_heartbeats(self, connection: Connection) -> None:
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            connection.send({"type": "beat", **self._words()})
