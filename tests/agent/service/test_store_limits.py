"""The memory of the c10d store is bounded, in all and for each member, whatever a member sends."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any

import pytest

from agent.fuzz.test_store_messages import FIRST, job, store
from agent.service.serving import Agent, Job, run, until
from agent.service.test_store_size import memory_of
from ddpjob_agent.c10d.budget import MIB, Budget, Hold, Limits, limits_for
from ddpjob_agent.c10d.protocol import MAX_VALUE_BYTES, Op, ProtocolError, Request, encode_request
from ddpjob_agent.c10d.store import Store
from ddpjob_agent.service.c10d_session import StoreSession
from ddpjob_agent.service.c10d_stores import MembershipStores
from ddpjob_operator.rendezvous.client import ServiceUnavailableError
from ddpjob_protocol.codec import DecodeError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ddpjob_agent.service.c10d_answers import Answer
    from ddpjob_protocol.messages.control import Report

MEMORY = 64 * MIB
LIMITS = limits_for(MEMORY)
SMALL = limits_for(4 * MIB)  # reached by few small writes
MANY = 100_000  # more requests than any limit here allows
FULL = r"the c10d store is full: a has .* of 16.0 MiB, .* raise spec.rendezvous.resources.limits"


def numbered(value: bytes) -> Iterator[tuple[tuple[bytes, ...], tuple[bytes, ...]]]:
    return (((b"%d" % number,), (value,)) for number in range(MANY))


def of_one_key(value: bytes) -> Iterator[tuple[tuple[bytes, ...], tuple[bytes, ...]]]:
    return itertools.repeat(((b"key",), (value,)), MANY)


def many_at_once() -> Iterator[tuple[tuple[bytes, ...], tuple[bytes, ...]]]:
    for batch in range(MANY):
        keys = tuple(b"%d.%d" % (batch, number) for number in range(1000))
        yield keys, (b"",) * len(keys)


@pytest.mark.parametrize(
    ("op", "requests"),
    [
        (Op.SET, numbered(bytes(MIB))),
        (Op.MULTI_SET, many_at_once()),
        (Op.APPEND, of_one_key(bytes(MIB))),
        (Op.QUEUE_PUSH, of_one_key(bytes(MIB))),
    ],
    ids=["large values", "many keys", "a value that grows", "a queue"],
)
def test_a_member_cannot_fill_the_memory_of_the_service(
    tmp_path: Path, op: Op, requests: Iterator[Any]
) -> None:
    async def fill(agent: Agent) -> None:
        for keys, values in requests:
            await agent.do(op, *keys, values=values)

    async def body(job: Job) -> None:
        await job.expect("a", "b")
        a, b = job.agent("a"), job.agent("b")
        await job.formed(1)
        before = memory_of(job)
        with pytest.raises(ProtocolError, match=FULL):
            await fill(a)
        assert memory_of(job) - before < MEMORY
        assert await b.add(b"of b", 1) == 1
        found = await reported(job)
        assert [(each.reason, each.worker) for each in found.warnings] == [("StoreFull", "a")]
        assert found.memberships[-1].cause == "started", "nobody was lost"

    run(body, tmp_path, MEMORY)


async def reported(job: Job) -> Report:
    """Return the first report with a warning."""

    async def attempt() -> Report:
        found = await job.report()
        if not found.warnings:
            raise ServiceUnavailableError("no warning")
        return found

    report: Report = await until(attempt)
    return report


class Peers:
    """A store of three workers, in this process."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self.stores = MembershipStores(job(restarted=False), limits)
        self.stores.sync_membership()
        self._numbers = itertools.count(1)

    async def do(self, worker: str, op: Op, *keys: bytes, values: tuple[bytes, ...] = ()) -> Answer:
        data = encode_request(Request(op, keys, values))
        hold = Hold(self.stores.budget, worker)
        return await self.stores.answer(worker, next(self._numbers), FIRST, data, hold)

    async def refused(self, worker: str, op: Op, value: bytes) -> str:
        """Write keys until the store refuses one."""
        for number in range(MANY):
            answer = await self.do(worker, op, b"%s%d" % (worker.encode(), number), values=(value,))
            if answer.refused:
                return answer.refused
        raise AssertionError("all was written")


def test_members_together_are_bounded_and_deletions_make_room() -> None:
    async def body() -> None:
        peers = Peers()
        assert "a has" in await peers.refused("a", Op.SET, bytes(MIB))
        assert peers.stores.budget.counted("a") <= LIMITS.member
        assert "all workers have" in await peers.refused("b", Op.SET, bytes(MIB))
        assert not (await peers.do("b", Op.SET, b"b0", values=(b"shorter",))).refused
        assert not (await peers.do("a", Op.DELETE_KEY, b"a1")).refused
        assert not (await peers.do("a", Op.SET, b"new", values=(bytes(MIB),))).refused
        assert not (await peers.do("b", Op.SET, b"b0", values=(bytes(MIB),))).refused
        assert (await peers.do("b", Op.MULTI_SET, b"x", b"y", values=(b"", bytes(MIB)))).refused
        assert (await peers.do("b", Op.CHECK, b"x")).reply == b"\1", "all of it was refused"

    asyncio.run(body())


def test_answers_that_a_member_never_confirms_count() -> None:
    async def body() -> str:
        peers = Peers(SMALL)
        for _ in range(MANY):
            answer = await peers.do("a", Op.SET, b"key", values=(b"",))
            if answer.refused:
                return answer.refused
        return ""

    assert "a has" in asyncio.run(body())


def test_keys_that_a_member_never_forgets_count() -> None:
    async def body() -> str:
        peers = Peers(SMALL)
        for number in range(MANY):
            key = b"%d" % number
            answer = await peers.do("a", Op.SET, key, values=(b"",))
            if answer.refused:
                return answer.refused
            await peers.do("a", Op.DELETE_KEY, key)
            peers.stores.settle("a", 10 * MANY)
        return ""

    assert "a has" in asyncio.run(body())


def test_writes_of_a_lost_store_are_bounded() -> None:
    stores = MembershipStores(job(restarted=True), LIMITS)
    stores.sync_membership()
    write = {"kind": 0, "key": "a2V5", "version": 1, "data": "AAAA" * 100_000}
    message = {"membership": FIRST, "first": True, "writes": [write]}

    def send_all() -> None:
        for number in range(MANY):
            stores.restore("a", {**message, "first": number == 0})

    with pytest.raises(DecodeError, match="the writes of all workers are more"):
        send_all()


class Deaf:
    """A connection whose agent reads nothing."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, message: Any) -> None:
        self.sent.append(message)

    async def drain(self) -> None:
        await asyncio.Event().wait()


def numbered_requests(request: Request) -> Iterator[Any]:
    data = encode_request(request)
    return (store(data, number, more=False) for number in range(1, MANY))


async def sent_to(connection: Deaf, stores: MembershipStores, request: Request, count: int) -> None:
    session = StoreSession(connection, "a")  # type: ignore[arg-type]
    for message in itertools.islice(numbered_requests(request), count):
        session.on_message(stores, message)
        await asyncio.sleep(0)
    session.close()
    for _ in range(3):  # until the cancelled tasks have ended
        await asyncio.sleep(0)


def test_an_agent_that_does_not_read_has_one_answer_waiting() -> None:
    async def body() -> None:
        peers, connection = Peers(), Deaf()
        await peers.do("b", Op.SET, b"key", values=(bytes(MAX_VALUE_BYTES),))
        await sent_to(connection, peers.stores, Request(Op.GET, (b"key",)), 100)
        assert len(connection.sent) == 1, "a part of the first answer"

    asyncio.run(body())


def test_requests_that_wait_count() -> None:
    async def body() -> None:
        peers, connection = Peers(SMALL), Deaf()
        await sent_to(connection, peers.stores, Request(Op.WAIT, (b"never",)), 1000)
        assert "a request needs" in connection.sent[0]["refused"]
        assert not (await peers.do("a", Op.SET, b"key", values=(bytes(MIB // 2),))).refused

    asyncio.run(body())


def test_an_agent_keeps_no_more_writes_than_the_store_could(tmp_path: Path) -> None:
    """An agent waits until what others have taken from a queue is forgotten."""

    async def body(job: Job) -> None:
        await job.expect("a", "b")
        a, b = job.agent("a"), job.agent("b")
        await job.formed(1)
        kept = 0
        for _ in range(50):
            await a.do(Op.QUEUE_PUSH, b"queue", values=(bytes(MIB),))
            assert len(await b.do(Op.QUEUE_POP, b"queue")) > MIB
            kept = max(kept, a.link.store.writes.size)
        assert kept < LIMITS.total + LIMITS.member + 2 * MIB

    run(body, tmp_path, MEMORY)


WORKERS, PROCESSES = 1000, 8


def test_the_default_memory_has_room_for_a_thousand_workers() -> None:
    """For the keys of torchrun, and for those of process groups that use the store."""
    limits = limits_for(256 * MIB)
    budget = Budget(limits)
    store = Store(budget=budget)
    workers = [f"w-{number}" for number in range(WORKERS)]

    def write(worker: str, key: str, value: bytes) -> None:
        store.apply(Request(Op.SET, (key.encode(),), (value,)), worker)

    state = b"/torch.rendezvous.namespace/name"
    for number, worker in enumerate(workers):  # the pickled state has all that have joined
        store.apply(Request(Op.SET, (state,), (bytes(200 * (number + 1)),)), worker)
    for worker in workers:
        for kind in ("role_info", "assigned_ranks", "agent_terminated", "worker_failure"):
            write(worker, f"torch.rendezvous.name.0/torchelastic/{kind}/{worker}", bytes(500))
        for process in range(PROCESSES):  # addresses, ids of NCCL, barriers, heartbeats
            for key in range(8):
                write(worker, f"default_pg/0//{worker}/{process}/{key}", bytes(128))
    assert len(store) > 60_000
    assert sum(map(budget.counted, workers)) < limits.total
