"""The agent's connection to the rendezvous service: it reconnects.

`store_requests` has the requests to the c10d store. It knows no processes.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from typing import TYPE_CHECKING, Callable

from ddpjob_agent.net.framing import (
    Connection,
    FramingError,
    RejectedError,
    WrongKeyError,
    connect,
)
from ddpjob_agent.net.store_requests import StoreRequests
from ddpjob_protocol.messages.order_delta import RunOrders

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from ddpjob_agent.c10d.protocol import Request
    from ddpjob_protocol.keys.credentials import Credential
    from ddpjob_protocol.messages.agent import Message

BEAT_SECONDS = 1.0
SILENCE_SECONDS = 10.0  # without a message from the service for this time, reconnect
# Seconds; first and longest pause between attempts. Only a session that has answered a heartbeat
# shortens the pause: a service may accept an agent and end each of its sessions at once.
RETRY_SECONDS = (0.05, 1.0)
# Seconds; first and longest attempt. While the service moves to another pod, packets to the old
# pod may be dropped, and only a new connection gets the new address.
ATTEMPT_SECONDS = (2.0, 10.0)

# Time in which a wrong key is retried: the address may have belonged to another job before.
STRANGER_SECONDS = 10.0

log = logging.getLogger("ddpjob.link")


class ServiceConnection:
    """The connection to the service: `hello` registers the agent, `beat` reports its processes."""

    def __init__(
        self,
        host: str,
        port: int,
        credential: Credential,
        hello: Callable[[], Message],
        receive: Callable[[Message], None],
        beat: Callable[[], Message] = dict,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`pause` waits for some seconds before the next attempt to connect."""
        self._address = (host, port)
        self._credential = credential
        self._hello = hello
        self._receive = receive
        self._words = beat
        self._pause = pause
        self._connection: Connection | None = None
        self.store = StoreRequests()
        self._is_over = False  # the service has ended the job
        self._has_lasted = False  # the session: it has answered a heartbeat
        self.last_received = time.monotonic()

    @property
    def membership(self) -> str:
        """The membership whose store gets the requests."""
        return self.store.membership

    def bind_store(self, membership: str, *, block_stale_requests: bool = False) -> None:
        """Send requests to this membership's store: `StoreRequests.bind`."""
        self.store.bind(membership, block_stale_requests=block_stale_requests)

    def unbind_store(self, membership: str) -> None:
        """Unbind the store of this membership, if it is bound."""
        if membership == self.membership:
            self.bind_store("")

    async def execute(self, request: Request, membership: str) -> bytes:
        """Execute a store request over reconnections: `StoreRequests.execute`."""
        return await self.store.execute(request, membership)

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

    async def run(self) -> None:
        """Stay connected until cancelled; raise RejectedError if the service rejects this agent."""
        pause, timeout = RETRY_SECONDS[0], ATTEMPT_SECONDS[0]
        rejected_since: float | None = None
        while True:
            try:
                connection = await connect(*self._address, self._credential, timeout)
            except (OSError, FramingError, WrongKeyError) as error:
                if not isinstance(error, WrongKeyError):
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
        connection.send({"type": "hello", **self._hello()})
        self._connection = connection
        self.store.on_connect(connection)
        loop, orders = asyncio.get_running_loop(), RunOrders()
        tasks = [asyncio.ensure_future(self._send_heartbeats(connection))]
        silence = loop.call_later(SILENCE_SECONDS, self._abort, connection)
        try:
            while True:
                message = await connection.receive()
                silence.cancel()
                silence = loop.call_later(SILENCE_SECONDS, self._abort, connection)
                if message is None:
                    return
                self.last_received = time.monotonic()
                try:
                    self._on_message(connection, orders, message, tasks)
                except (KeyError, TypeError, ValueError) as error:
                    raise FramingError(f"a message that cannot be read: {error!r}") from error
        finally:
            silence.cancel()
            for task in tasks:
                task.cancel()
            self.store.on_disconnect()

    async def _find_next_service(self, departing: Connection) -> None:
        """Wait until the next service accepts this agent; report that to the one that departs."""
        while True:
            try:
                found = await connect(*self._address, self._credential, ATTEMPT_SECONDS[0])
            except (OSError, FramingError, WrongKeyError) as error:
                log.debug("no next rendezvous service: %r", error)
                await self._pause(RETRY_SECONDS[1])
            else:
                found.close()
                departing.send({"type": "moves"})
                return

    def _on_message(
        self,
        connection: Connection,
        orders: RunOrders,
        message: Message,
        tasks: list[asyncio.Task[None]],
    ) -> None:
        kind = message["type"]
        if kind == "refused":
            raise RejectedError(str(message["reason"]))
        if self.store.on_message(connection, message):
            return
        if kind == "beat":
            self._has_lasted = True
        elif kind == "ask":
            self._send_heartbeat(connection)
        elif kind == "departing":
            tasks.append(asyncio.ensure_future(self._find_next_service(connection)))
        elif kind != "probe":
            self._is_over = kind == "finish"
            self._receive(orders.complete(message))

    @staticmethod
    def _abort(connection: Connection) -> None:
        log.warning("the rendezvous service has been silent for %.0f s", SILENCE_SECONDS)
        connection.close()

    async def _send_heartbeats(self, connection: Connection) -> None:
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            self._send_heartbeat(connection)

    def _send_heartbeat(self, connection: Connection) -> None:
        connection.send({"type": "beat", "settled": self.store.settled, **self._words()})
