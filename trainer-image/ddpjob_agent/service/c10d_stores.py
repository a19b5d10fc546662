"""The c10d store of the current membership, which agents use over their connections.

Each membership has a new store, so no process ever reads a key of an older membership. After a
restart of the service, the store is rebuilt from the writes of all members: it answers only once
each of them has sent all of its writes (docs/adr/0048).

The first torchrun to join a rendezvous would poll again only after a second. Therefore the store
answers a join only once all members have joined, with the state of that moment. torchrun handles
the answer as a lost race, finds itself in the state, and continues at once (docs/adr/0013).

May not: open connections, or decide which workers are members; `registry.decisions` does.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from typing import TYPE_CHECKING, Any, NamedTuple

from ddpjob_agent.c10d.holders import Holders
from ddpjob_agent.c10d.protocol import Op, ProtocolError, Request, decode_request, encode_bytes
from ddpjob_agent.c10d.server import StoreBackend
from ddpjob_agent.c10d.store import Store
from ddpjob_agent.c10d.torchrun_ranks import TorchrunRanks
from ddpjob_agent.c10d.writes import Forget, Forgotten, Kind, Write, writes_of
from ddpjob_agent.service.join_queue import JoinQueue
from ddpjob_protocol.codec import DecodeError, decode, encode
from ddpjob_protocol.parsers.checks import count

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ddpjob_agent.registry.state.registry_state import RegistryState
    from ddpjob_protocol.messages.agent import Message

TORCHRUN_KEY = b"/torch.rendezvous."  # prefix of the keys of torchrun's rendezvous
GATHER_SECONDS = 10.0
MAX_ASKS = 1000  # keys that one message asks a worker to forget
MAX_VERSION = 2**62

log = logging.getLogger("ddpjob.store")


class Answer(NamedTuple):
    """The answer to a request; a worker gets it again until it has confirmed it."""

    reply: bytes = b""
    version: int = 0
    total: int = 0
    refused: str = ""
    overtaken: bool = False  # the membership has changed

    def fields(self) -> Message:
        """Return the fields of the message beside the reply."""
        return {name: value for name, value in self._asdict().items() if value and name != "reply"}


class _Unsettled(NamedTuple):
    """An answer that may get lost; without the values that the request itself has."""

    answer: Answer
    writes: tuple[Write, ...]


class MembershipStores:
    """The stores of one job's memberships; one at a time."""

    def __init__(self, state: RegistryState) -> None:
        self._state = state
        self._membership = ""
        self._renew()

    def _renew(self) -> None:
        self._state.ranks = TorchrunRanks()
        self._unsettled: dict[str, dict[int, _Unsettled]] = {}  # by worker and number of request
        self._holders = Holders()
        self._missing: set[str] = set()  # members that have not sent all their writes
        self._writes: dict[str, list[Write]] = {}  # by worker, until no one is missing
        self._version = 0  # the highest one of a lost store
        self._arrived: set[str] = set()  # members whose torchrun has joined
        self._gathered = asyncio.Event()
        self._joins = JoinQueue()
        self._ready = asyncio.Event()

    def sync_membership(self) -> None:
        """Start a new store for a new membership."""
        current = self._state.current
        membership = str(current.id) if current else ""
        if membership == self._membership:
            return
        self._ready.set()  # requests to the old store end
        self._membership = membership
        self._renew()
        if current and self._state.relearned:
            self._missing = set(current.by_worker)
            self._gathered.set()  # its torchruns have joined before
        else:
            self._open()

    def _open(self) -> None:
        writes = [write for each in self._writes.values() for write in each]
        self._store = Store(writes, self._version)
        self._backend = StoreBackend(self._store)
        for worker, own in self._writes.items():
            self._settle(worker, own)
        self._writes = {}
        self._ready.set()

    # --- writes of members ------------------------------------------------------------------------

    def lacks(self, worker: str) -> str:
        """Return the membership of which this worker has to send its writes, or nothing."""
        is_lacked = worker in self._missing and self._state.is_member(worker)
        return self._membership if is_lacked else ""

    def restore(self, worker: str, message: Mapping[str, Any]) -> None:
        """Take writes of a member; the message with a version is the last one."""
        if message["membership"] != self._membership or worker not in self._missing:
            return
        writes = self._writes.setdefault(worker, [])
        if message.get("first"):
            writes.clear()
        writes += [_check(decode(Write, item)) for item in message["writes"]]
        if "version" not in message:
            return
        version = count(message["version"], "writes.version", MAX_VERSION)
        self._missing.discard(worker)
        self._version = max(self._version, version)
        self._observe_ranks(worker, writes)
        if not self._missing:
            self._open()

    def settle(self, worker: str, number: int) -> None:
        """Forget the answers to this worker's requests below a number: the worker has them."""
        unsettled = self._unsettled.get(worker, {})
        for each in [each for each in unsettled if each < number]:
            self._settle(worker, unsettled.pop(each).writes)

    def _settle(self, worker: str, writes: Iterable[Write]) -> None:
        self._holders.settle(worker, writes)
        for key in {write.key for write in writes}:
            self._drop_if_dead(key)

    def asks(self, worker: str) -> Message | None:
        """Return the message that asks this worker to forget writes, if there are any."""
        asks = self._holders.asks(worker, MAX_ASKS)
        keys = [encode(Forgotten(key, what.below, what.upto)) for key, what in asks]
        return {"type": "forget", "membership": self._membership, "keys": keys} if keys else None

    def on_forgotten(self, worker: str, message: Mapping[str, Any]) -> None:
        """Record what a worker has forgotten."""
        if message["membership"] != self._membership:
            return
        for item in message["keys"]:
            told = decode(Forgotten, item)
            what = Forget(told.below, told.upto)
            self._holders.confirm(worker, told.key, what, left=told.left)
            self._drop_if_dead(told.key)

    def _drop_if_dead(self, key: bytes) -> None:
        version = self._holders.settled_at(key)
        if version is not None and self._store.forget_if_dead(key, version):
            self._holders.retire(key)

    # --- requests ---------------------------------------------------------------------------------

    def serves(self, worker: str, membership: str) -> bool:
        """Return whether requests of this worker to the store of this membership are answered."""
        return membership == self._membership and self._state.is_member(worker)

    async def answer(self, worker: str, number: int, membership: str, data: bytes) -> Answer:
        """Answer a worker's request; execute a write once, even if the worker sends it again."""
        while membership == self._membership and not self._ready.is_set():
            await self._ready.wait()
        if not self.serves(worker, membership):
            return Answer(overtaken=True)
        try:
            request = decode_request(data)
            done = self._unsettled.get(worker, {}).get(number)
            if done:
                return await self._repeat(done, request)
            return await self._execute(worker, number, request)
        except ProtocolError as error:
            log.warning("%s: refused a store request: %s", worker, error)
            return Answer(refused=str(error))

    async def _execute(self, worker: str, number: int, request: Request) -> Answer:
        backend, gathered, ranks = self._backend, self._gathered, self._state.ranks
        joins = self._joins
        unsettled = self._unsettled.setdefault(worker, {})
        applied = await backend.apply(request)
        answer = Answer(applied.reply, applied.version, applied.total)
        if not applied.version:
            if _reads_rendezvous(request) and not gathered.is_set():
                await joins.turn(worker)
                return Answer(await backend.execute(Request(Op.GET, request.keys)))
            return answer
        writes = writes_of(request, applied.version, applied.total)
        for write in writes:
            ranks.observe(worker, write.key, write.data)
        kept = b"" if request.op is Op.COMPARE_SET else applied.reply
        keys = tuple(dataclasses.replace(write, data=None) for write in writes)
        unsettled[number] = _Unsettled(answer._replace(reply=kept), keys)
        if _is_join(request):
            joins.end(worker)
            await self._gather(worker, gathered)
            return answer._replace(reply=await backend.execute(Request(Op.GET, request.keys)))
        return answer

    async def _repeat(self, done: _Unsettled, request: Request) -> Answer:
        if _is_join(request):
            reply = await self._backend.execute(Request(Op.GET, request.keys))
        elif request.op is Op.COMPARE_SET:
            reply = encode_bytes(request.values[1])
        else:
            reply = done.answer.reply
        return done.answer._replace(reply=reply)

    def _observe_ranks(self, worker: str, writes: Iterable[Write]) -> None:
        for write in writes:
            self._state.ranks.observe(worker, write.key, write.data)

    async def _gather(self, worker: str, gathered: asyncio.Event) -> None:
        """Wait until the torchrun of every member has joined, so that no torchrun has to poll."""
        current = self._state.current
        self._arrived.add(worker)
        if current and self._arrived.issuperset(current.by_worker):
            gathered.set()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(gathered.wait(), GATHER_SECONDS)


def _check(write: Write) -> Write:
    if not 0 < write.version < MAX_VERSION or (write.data is None and write.kind in _WITH_DATA):
        raise DecodeError(f"write of version {write.version} without data or with an odd version")
    return write


_WITH_DATA = (Kind.APPEND, Kind.PUSH)


def _is_join(request: Request) -> bool:
    """Return whether the request joins a torchrun rendezvous.

    Without an expected value, the request only creates the key.
    """
    is_torchrun = request.op is Op.COMPARE_SET and request.keys[0].startswith(TORCHRUN_KEY)
    return is_torchrun and request.values[0] != b""


def _reads_rendezvous(request: Request) -> bool:
    """Return whether the answer is the state of a rendezvous: of a read, or of a join that failed."""
    is_read = request.op is Op.GET and request.keys[0].startswith(TORCHRUN_KEY)
    return is_read or _is_join(request)
