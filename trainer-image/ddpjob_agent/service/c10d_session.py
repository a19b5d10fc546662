"""The store requests of one connected agent: their parts, their tasks and the parts of the answers.

May not: know the registry, or execute a request; `c10d_stores` does.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import logging
from typing import TYPE_CHECKING

from ddpjob_agent.c10d.budget import OPEN_BYTES, Hold, StoreFullError
from ddpjob_agent.c10d.protocol import BLOCKING, MAX_BYTES, MAX_KEYS
from ddpjob_agent.net.parts import parts_of
from ddpjob_agent.service.c10d_answers import TORCHRUN_KEY
from ddpjob_protocol.codec import DecodeError, show
from ddpjob_protocol.parsers.checks import count

if TYPE_CHECKING:
    from ddpjob_agent.net.framing import Connection
    from ddpjob_agent.service.c10d_answers import Answer
    from ddpjob_agent.service.c10d_stores import MembershipStores
    from ddpjob_protocol.messages.agent import Message

STORE_MESSAGES = ("store", "cancel", "writes", "forgot")
MAX_REQUEST_BYTES = MAX_BYTES + 16 * MAX_KEYS + 64  # with the lengths of keys and values

_WAITING = [bytes([op]) for op in BLOCKING]
_KEY_AT = 9  # of the first key in a request: behind the command and the length

log = logging.getLogger("ddpjob.store")


class StoreSession:
    """The store requests of one connection."""

    def __init__(self, connection: Connection, worker: str) -> None:
        self._connection = connection
        self._worker = worker
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._number = 0  # of the request whose parts are arriving
        self._parts = bytearray()
        self._hold: Hold | None = None  # counts these parts
        self._is_refused = False  # this request
        # One answer at a time, so that an agent that does not read costs the memory of one.
        self._turns = {is_torchrun: asyncio.Lock() for is_torchrun in (False, True)}
        self._is_closed = False
        self._has_answered = False
        self._asked = ""  # the membership of which it was asked for its writes

    def close(self) -> None:
        """End all requests."""
        self._is_closed = True
        self._drop_parts()
        for task in self._tasks.values():
            task.cancel()

    def ask_for_writes(self, stores: MembershipStores) -> None:
        """Ask the worker for its writes once, if the store has to be rebuilt from them."""
        lacked = stores.lacks(self._worker)
        if lacked and lacked != self._asked:
            self._asked = lacked
            self._connection.send({"type": "restore", "membership": lacked})

    def on_beat(self, stores: MembershipStores, message: Message) -> None:
        """Settle the answers that the worker has, and ask it to forget writes."""
        settled = message.get("settled")
        if type(settled) is int:
            stores.settle(self._worker, settled)
        self._ask_to_forget(stores)

    def on_message(self, stores: MembershipStores, message: Message) -> None:
        """Handle a checked message; raise DecodeError if its content is odd."""
        kind = message["type"]
        if kind == "store":
            self._on_part(stores, message)
        elif kind == "cancel":
            self._cancel(message["id"])
        elif kind == "writes":
            stores.restore(self._worker, message)
        elif stores.on_forgotten(self._worker, message):
            self._ask_to_forget(stores)

    def _ask_to_forget(self, stores: MembershipStores) -> None:
        asks = stores.asks(self._worker)
        if asks:
            self._connection.send(asks)

    def _cancel(self, number: int) -> None:
        if number == self._number:
            self._drop_parts()
        task = self._tasks.get(number)
        if task is None:
            self._connection.send({"type": "stored", "id": number})
        else:
            task.cancel()

    def _on_part(self, stores: MembershipStores, message: Message) -> None:
        number = message["id"]
        if number != self._number:
            self._drop_parts()
            self._number = number
            self._is_refused = not stores.serves(self._worker, message["membership"])
            if self._is_refused:  # before its other parts take memory
                self._connection.send({"type": "stored", "id": number, "overtaken": True})
        if self._is_refused:
            return
        if self._hold is None:
            self._hold = Hold(stores.budget, self._worker)
            if not self._has_room(stores, self._hold, number, OPEN_BYTES):
                return
        try:
            part = base64.b64decode(message["data"], validate=True)
            count(len(self._parts) + len(part), "the size of a store request", MAX_REQUEST_BYTES)
        except ValueError as error:  # DecodeError is one, too
            self._refuse(number, str(error))
            raise DecodeError(f"store.data is {show(message['data'])}: {error}") from error
        hold = self._hold
        if not self._has_room(stores, hold, number, len(part)):
            return
        self._parts += part
        if message.get("more"):
            return
        data = self._parts
        self._number, self._parts, self._hold = 0, bytearray(), None
        if "settled" in message:
            stores.settle(self._worker, message["settled"])
        task = asyncio.ensure_future(self._serve(stores, number, message["membership"], data, hold))
        self._tasks[number] = task
        task.add_done_callback(functools.partial(self._on_end, number, hold))

    def _has_room(self, stores: MembershipStores, hold: Hold, number: int, size: int) -> bool:
        """Count more bytes of a request; refuse it if they are too many."""
        try:
            hold.add("a request", size)
        except StoreFullError as error:
            stores.warn_full(self._worker, error)
            self._refuse(number, str(error))
            return False
        return True

    def _refuse(self, number: int, problem: str) -> None:
        self._drop_parts()
        self._is_refused = True
        self._connection.send({"type": "stored", "id": number, "refused": problem})

    def _drop_parts(self) -> None:
        self._parts = bytearray()
        if self._hold is not None:
            self._hold.release()
            self._hold = None

    def _on_end(self, number: int, hold: Hold, task: asyncio.Task[None]) -> None:
        """Answer a request that the worker has cancelled, also before its task has begun."""
        hold.release()
        self._tasks.pop(number, None)
        if task.cancelled() and not self._is_closed:
            self._connection.send({"type": "stored", "id": number})

    async def _serve(
        self, stores: MembershipStores, number: int, membership: str, data: bytearray, hold: Hold
    ) -> None:
        async with contextlib.AsyncExitStack() as stack:
            if data[:1] not in _WAITING:
                is_torchrun = data.startswith(TORCHRUN_KEY, _KEY_AT)
                await stack.enter_async_context(self._turns[is_torchrun])
            try:
                answer = await stores.answer(self._worker, number, membership, data, hold)
                await self._send(number, answer, stores.limits.total + stores.limits.member)
            except Exception as error:  # noqa: BLE001 - it ends this session only
                log.warning("cannot serve a request of %s: %r; closing", self._worker, error)
                self._connection.close()

    async def _send(self, number: int, answer: Answer, keeps: int) -> None:
        head = {"type": "stored", "id": number}
        if not self._has_answered:
            self._has_answered = True
            head["keeps"] = keeps
        for part in parts_of(answer.reply):
            is_last = "more" not in part
            self._connection.send({**head, **part, **(answer.fields() if is_last else {})})
            if not is_last:
                await self._connection.drain()
