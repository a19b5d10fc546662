"""The c10d store of the current membership, which agents use over their connections.

Each membership has a new store, so no process ever reads a key of an older membership. After a
restart of the service, the store is rebuilt from the writes of all members: it answers only once
each of them has sent all of its writes (docs/adr/0048).

The first torchrun to join a rendezvous would poll again only after a second. Therefore the store
answers a join only once all members have joined, with the state of that moment. torchrun handles
the answer as a lost race, finds itself in the state, and continues at once (docs/adr/0013).

The memory of a store is bounded, in all and for each member (docs/adr/0073).

May not: open connections, or decide which workers are members; `registry.decisions` does.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import time
from typing import TYPE_CHECKING, Any

from ddpjob_agent.c10d.budget import (
    ANSWER_BYTES,
    KEY_BYTES,
    Budget,
    Hold,
    StoreFullError,
    limits_for,
)
from ddpjob_agent.c10d.holders import Holders
from ddpjob_agent.c10d.protocol import (
    WRITES,
    Op,
    ProtocolError,
    Request,
    decode_request,
    encode_bytes,
)
from ddpjob_agent.c10d.server import StoreBackend
from ddpjob_agent.c10d.store import Store
from ddpjob_agent.c10d.torchrun_ranks import TorchrunRanks
from ddpjob_agent.c10d.writes import (
    MAX_VERSION,
    Forget,
    Forgotten,
    Write,
    check_write,
    writes_of,
)
from ddpjob_agent.service.c10d_answers import (
    Answer,
    UnsettledAnswer,
    is_join,
    may_wait,
    reads_rendezvous,
)
from ddpjob_agent.service.join_queue import JoinQueue
from ddpjob_protocol.codec import DecodeError, decode, encode
from ddpjob_protocol.messages.warnings import store_full
from ddpjob_protocol.parsers.checks import count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ddpjob_agent.c10d.budget import Limits
    from ddpjob_agent.registry.state.registry_state import RegistryState
    from ddpjob_protocol.messages.agent import Message

GATHER_SECONDS = 10.0
MAX_ASKS = 1000  # keys that one message asks a worker to forget

log = logging.getLogger("ddpjob.store")


class MembershipStores:
    """The stores of one job's memberships; one at a time."""

    def __init__(
        self,
        state: RegistryState,
        limits: Limits | None = None,
        on_warning: Callable[[], None] = lambda: None,
    ) -> None:
        self._on_warning = on_warning
        self.limits = limits or limits_for(None)
        self._state = state
        self._membership = ""
        self._renew()

    def _renew(self) -> None:
        self.budget = Budget(self.limits)
        self._warned: set[str] = set()  # workers
        self._restored: dict[str, int] = {}  # bytes of `_writes` by worker
        self._state.ranks = TorchrunRanks()
        self._unsettled: dict[
            str, dict[int, UnsettledAnswer]
        ] = {}  # by worker and number of request
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
        self._store = Store(writes, self._version, self.budget)
        self._backend = StoreBackend(self._store)
        for worker, own in self._writes.items():
            self._settle(worker, own)
        self._writes, self._restored = {}, {}
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
            self._restored[worker] = 0
        found = [check_write(decode(Write, item)) for item in message["writes"]]
        self._count_restored(worker, found)
        writes += found
        if "version" not in message:
            return
        version = count(message["version"], "writes.version", MAX_VERSION)
        self._missing.discard(worker)
        self._version = max(self._version, version)
        self._observe_ranks(worker, writes)
        if not self._missing:
            self._open()

    def _count_restored(self, worker: str, writes: Iterable[Write]) -> None:
        """Count writes of a lost store; also such that were replaced, and not yet forgotten."""
        size = sum(KEY_BYTES + len(each.key) + len(each.data or b"") for each in writes)
        limit = self.limits.total + self.limits.member
        if sum(self._restored.values()) + size > limit:
            raise DecodeError(f"the writes of all workers are more than {limit} bytes")
        self._restored[worker] = self._restored.get(worker, 0) + size

    def settle(self, worker: str, number: int) -> None:
        """Forget the answers to this worker's requests below a number: the worker has them."""
        unsettled = self._unsettled.get(worker, {})
        for each in [each for each in unsettled if each < number]:
            settled = unsettled.pop(each)
            self.budget.count(worker, -settled.size)
            self._settle(worker, settled.writes)

    def _settle(self, worker: str, writes: Iterable[Write]) -> None:
        self._holders.settle(worker, writes)
        for key in {write.key for write in writes}:
            self._drop_if_dead(key)

    def asks(self, worker: str) -> Message | None:
        """Return the message that asks this worker to forget writes, if there are any."""
        asks = self._holders.asks(worker, MAX_ASKS)
        keys = [encode(Forgotten(key, what.below, what.upto)) for key, what in asks]
        return {"type": "forget", "membership": self._membership, "keys": keys} if keys else None

    def on_forgotten(self, worker: str, message: Mapping[str, Any]) -> bool:
        """Record what a worker has forgotten; return whether that was asked for."""
        if message["membership"] != self._membership:
            return False
        before = self._holders.asked(worker)
        for item in message["keys"]:
            told = decode(Forgotten, item)
            what = Forget(told.below, told.upto)
            self._holders.confirm(worker, told.key, what, left=told.left)
            self._drop_if_dead(told.key)
        return self._holders.asked(worker) < before

    def _drop_if_dead(self, key: bytes) -> None:
        version = self._holders.settled_at(key)
        if version is not None and self._store.forget_if_dead(key, version):
            self._holders.retire(key)

    # --- requests ---------------------------------------------------------------------------------

    def serves(self, worker: str, membership: str) -> bool:
        """Return whether requests of this worker to the store of this membership are answered."""
        return membership == self._membership and self._state.is_member(worker)

    async def answer(
        self, worker: str, number: int, membership: str, data: bytes | bytearray, hold: Hold
    ) -> Answer:
        """Answer a worker's request; execute a write once, even if the worker sends it again.

        `hold` counts the request. It is released once the request waits no more.
        """
        while membership == self._membership and not self._ready.is_set():
            await self._ready.wait()
        if not self.serves(worker, membership):
            return Answer(overtaken=True)
        try:
            request = decode_request(data)
            done = self._unsettled.get(worker, {}).get(number)
            if done:
                return await self._repeat(done, request)
            if not may_wait(request):
                hold.release()
            return await self._execute(worker, number, request)
        except StoreFullError as error:
            log.warning("%s: refused a store request: %s", worker, error)
            self.warn_full(worker, error)
            return Answer(refused=str(error))
        except ProtocolError as error:
            log.warning("%s: refused a store request: %s", worker, error)
            return Answer(refused=str(error))

    async def _execute(self, worker: str, number: int, request: Request) -> Answer:
        backend, gathered, ranks = self._backend, self._gathered, self._state.ranks
        budget = self.budget
        joins = self._joins
        unsettled = self._unsettled.setdefault(worker, {})
        if request.op in WRITES:
            self._check_confirmations(worker, request)
        applied = await backend.apply(request, worker)
        answer = Answer(applied.reply, applied.version, applied.total)
        if not applied.version:
            if reads_rendezvous(request) and not gathered.is_set():
                await joins.turn(worker)
                return Answer(await backend.execute(Request(Op.GET, request.keys)))
            return answer
        writes = writes_of(request, applied.version, applied.total)
        for write in writes:
            ranks.observe(worker, write.key, write.data)
        kept = b"" if request.op is Op.COMPARE_SET else applied.reply
        keys = tuple(dataclasses.replace(write, data=None) for write in writes)
        unsettled[number] = UnsettledAnswer(answer._replace(reply=kept), keys)
        budget.count(worker, unsettled[number].size)
        if is_join(request):
            joins.end(worker)
            await self._gather(worker, gathered)
            return answer._replace(reply=await backend.execute(Request(Op.GET, request.keys)))
        return answer

    def _check_confirmations(self, worker: str, request: Request) -> None:
        """Refuse writes of a worker that confirms no answers, or forgets nothing."""
        kept = self._holders.asked(worker) * KEY_BYTES + ANSWER_BYTES * len(request.keys)
        self.budget.check(worker, request.op.name, kept, 0)

    def warn_full(self, worker: str, error: StoreFullError) -> None:
        """Warn of the first request of this worker that was refused, until the membership ends."""
        if worker in self._warned:
            return
        self._warned.add(worker)
        warning = store_full(self._membership, str(error))
        self._state.warnings.add(worker, warning, self._state.wall(time.monotonic()))
        self._on_warning()

    async def _repeat(self, done: UnsettledAnswer, request: Request) -> Answer:
        if is_join(request):
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
