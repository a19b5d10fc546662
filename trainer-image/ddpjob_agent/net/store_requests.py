"""The requests of one agent to the c10d store of its membership, over any number of connections.

It sends open requests again after a reconnect. It keeps the writes of this agent, for a service
that was started again and asks for them. Requests, answers and writes travel in parts, so no frame
grows with them, and heartbeats pass between the parts. A request waits while this agent keeps more
writes than the service allows: what others have replaced is forgotten soon.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import itertools
import sys
from typing import TYPE_CHECKING

from ddpjob_agent.c10d.protocol import WRITES, Op, ProtocolError, encode_request
from ddpjob_agent.c10d.writes import Forget, Forgotten, OwnWrites, writes_of
from ddpjob_agent.net.parts import PART_BYTES, parts_of
from ddpjob_protocol.codec import decode, encode

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

    from ddpjob_agent.c10d.protocol import Request
    from ddpjob_agent.net.framing import Connection
    from ddpjob_protocol.messages.agent import Message


class StaleMembershipError(ConnectionError):
    """The membership that a request belongs to is no longer the current one."""

    def __init__(self, membership: str) -> None:
        super().__init__(f"its membership {membership} is no longer the current one")


class _Pending:
    def __init__(self, number: int, request: Request, membership: str) -> None:
        self.number = number
        self.request = request
        self.data = encode_request(request)
        self.membership = membership
        self.received = bytearray()
        self.answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()


class StoreRequests:
    """The open requests and the writes of one agent."""

    def __init__(self) -> None:
        self.membership = ""  # membership whose store gets the requests
        self._connection: Connection | None = None
        self._numbers = itertools.count(1)
        self._pending: dict[int, _Pending] = {}
        self.writes = OwnWrites()
        self._version = 0  # the highest one in an answer
        self._holds = False  # if the membership is stale, its requests block
        self._left = asyncio.Event()  # set when the membership is no longer bound
        self._sending = asyncio.Lock()  # one request in parts at a time
        self._tasks: set[asyncio.Task[None]] = set()
        self._newest = 0
        self._most = sys.maxsize  # bytes of writes that it may keep
        self._room = asyncio.Event()  # set while it keeps no more
        self._room.set()

    def bind(self, membership: str, *, block_stale_requests: bool = False) -> None:
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
        self.writes.clear()
        self._room.set()
        self._version = 0
        for pending in self._pending.values():
            if not pending.answer.done():
                pending.answer.set_exception(StaleMembershipError(pending.membership))

    @property
    def settled(self) -> int:
        """The number below which every request that may write has its answer."""
        writing = (n for n, each in self._pending.items() if each.request.op is not Op.WAIT)
        return min(writing, default=self._newest + 1)

    async def execute(self, request: Request, membership: str) -> bytes:
        """Execute a request over reconnections.

        Raise StaleMembershipError, or ProtocolError if the service refuses the request.
        """
        if request.op in WRITES:
            await self._room.wait()
        if membership != self.membership:
            raise StaleMembershipError(membership)
        left = self._left
        number = self._newest = next(self._numbers)
        pending = self._pending[number] = _Pending(number, request, membership)
        try:
            await self._send(pending, self._connection)
            answer = await pending.answer
        except asyncio.CancelledError:
            pending.answer.cancel()
            if self._connection is None:
                self._pending.pop(number, None)
            else:  # its answer may be on its way
                self._connection.send({"type": "cancel", "id": number})
            raise
        except StaleMembershipError:
            self._pending.pop(number, None)
            raise
        if "refused" in answer:
            raise ProtocolError(answer["refused"])
        if "overtaken" in answer:
            if self._holds and membership == self.membership:
                await left.wait()
            raise StaleMembershipError(membership)
        return bytes(pending.received)

    # --- connections ------------------------------------------------------------------------------

    def on_connect(self, connection: Connection) -> None:
        """Send all open requests again."""
        self._connection = connection
        for pending in list(self._pending.values()):
            if pending.answer.done():
                del self._pending[pending.number]
            else:
                pending.received.clear()
                self._start(self._send(pending, connection))

    def on_disconnect(self) -> None:
        """Send nothing until the next connection."""
        self._connection = None
        for task in self._tasks:
            task.cancel()

    def on_message(self, connection: Connection, message: Message) -> bool:
        """Handle a message of the service; return False if it has nothing to do with the store."""
        kind = message["type"]
        if kind == "stored":
            self._on_stored(message)
        elif kind == "restore":
            self._start(self._send_writes(message["membership"], connection))
        elif kind == "forget":
            self._forget(message, connection)
        return kind in ("stored", "restore", "forget")

    def _start(self, sending: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(sending)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send(self, pending: _Pending, connection: Connection | None) -> None:
        """Send a request; a new connection gets it from `on_connect`."""
        if connection is None:
            return
        head = {"type": "store", "id": pending.number, "membership": pending.membership}
        parts = list(parts_of(pending.data))
        if len(parts) == 1:
            connection.send({**head, **parts[0], "settled": self.settled})
            return
        async with self._sending:
            for part in parts:
                if connection is not self._connection or pending.answer.done():
                    return
                connection.send({**head, **part})
                with contextlib.suppress(ConnectionError):
                    await connection.drain()

    def _on_stored(self, message: Message) -> None:
        pending = self._pending.get(message["id"])
        if pending is None:
            return
        data = base64.b64decode(message.get("data", ""))
        version, total = _integer(message, "version", 0), _integer(message, "total", 0)
        self._most = _integer(message, "keeps", self._most)
        pending.received += data
        if message.get("more"):
            return
        del self._pending[pending.number]
        if pending.membership == self.membership:
            self._version = max(self._version, version)
            for write in writes_of(pending.request, version, total):
                self.writes.add(write)
            self._update_room()
        if not pending.answer.done():
            pending.answer.set_result(message)

    # --- writes -----------------------------------------------------------------------------------

    def _update_room(self) -> None:
        if self.writes.size > self._most:
            self._room.clear()
        else:
            self._room.set()

    async def _send_writes(self, membership: str, connection: Connection) -> None:
        """Send the writes of this membership to a service that was started again."""
        writes = list(self.writes) if membership == self.membership else []
        head = {"type": "writes", "membership": membership, "first": True}
        batch: list[Message] = []
        size = 0
        for write in writes:
            batch.append(encode(write))
            size += len(write.key) + len(write.data or b"")
            if size >= PART_BYTES:
                connection.send({**head, "writes": batch})
                await connection.drain()
                head["first"], batch, size = False, [], 0
        connection.send({**head, "writes": batch, "version": self._version})

    def _forget(self, message: Message, connection: Connection) -> None:
        is_bound, keys = message["membership"] == self.membership, []
        for item in message["keys"]:
            asked = decode(Forgotten, item)
            left = is_bound and self.writes.forget(asked.key, Forget(asked.below, asked.upto))
            keys.append(encode(dataclasses.replace(asked, left=left)))
        self._update_room()
        connection.send({"type": "forgot", "membership": message["membership"], "keys": keys})


def _integer(message: Message, field: str, default: int) -> int:
    value = message.get(field, default)
    if type(value) is not int:
        raise TypeError(f"stored.{field} is not an integer")
    return value
