"""Large values, and many writes, in a real service: what torch allows works, and memory is bounded."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from agent.service.serving import Agent, Job, run, until
from ddpjob_agent.c10d.protocol import MAX_VALUE_BYTES, Op, ProtocolError
from ddpjob_agent.net.framing import Connection
from ddpjob_operator.rendezvous.client import ServiceUnavailableError

if TYPE_CHECKING:
    from pathlib import Path

LARGE = bytes(MAX_VALUE_BYTES)
SEVEN = tuple(b"%d" % number for number in range(7))
MEGABYTE = 1_000_000


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The messages that agents receive."""
    found: list[Any] = []
    receive = Connection.receive

    async def record(self: Connection) -> Any:
        message = await receive(self)
        found.append(message)
        return message

    monkeypatch.setattr(Connection, "receive", record)
    return found


def sessions_of(agent: Agent) -> list[object]:
    """Record each further session of this agent."""
    opened: list[object] = []
    hello = agent.link._hello

    def count() -> Any:
        opened.append(object())
        return hello()

    agent.link._hello = count
    return opened


def memory_of(job: Job) -> int:
    """Return the memory of the service in bytes."""
    return int(psutil.Process(job.service.process.pid).memory_info().rss)


async def restarted(job: Job, *workers: str) -> None:
    await job.service.kill()
    job.service.start()
    await job.expect(*workers)


def test_56_mb_in_one_request_and_in_one_answer(tmp_path: Path) -> None:
    async def body(job: Job) -> None:
        await job.expect("a")
        a = job.agent("a")
        await job.formed(1)
        opened = sessions_of(a)
        await a.do(Op.MULTI_SET, *SEVEN, values=(LARGE,) * 7)
        assert len(await a.do(Op.MULTI_GET, *SEVEN)) == 7 * (8 + len(LARGE))
        assert opened == [], "no connection was lost"

    run(body, tmp_path)


def test_what_cannot_be_sent_is_refused_and_costs_no_session(tmp_path: Path) -> None:
    async def body(job: Job) -> None:
        await job.expect("a")
        a = job.agent("a")
        await job.formed(1)
        opened = sessions_of(a)
        for half in (SEVEN, (b"7", b"8")):
            await a.do(Op.MULTI_SET, *half, values=(LARGE,) * len(half))
        with pytest.raises(ProtocolError, match="the values of 9 keys have more than"):
            await a.do(Op.MULTI_GET, *SEVEN, b"7", b"8")
        with pytest.raises(ProtocolError, match=r"a MULTI_SET request has more than .* split it"):
            await a.do(Op.MULTI_SET, *SEVEN, b"7", b"8", values=(LARGE,) * 9)
        assert await a.add(b"count", 1) == 1
        assert opened == []

    run(body, tmp_path)


def test_a_worker_with_more_writes_than_a_frame_holds_gets_back(tmp_path: Path) -> None:
    async def body(job: Job) -> None:
        await job.expect("a", "b")
        a, b = job.agent("a"), job.agent("b")
        await job.formed(1)
        keys = [b"%d" % number for number in range(70)]
        for key in keys:
            await a.do(Op.SET, key, values=(key + bytes(MEGABYTE),))
        await restarted(job, "a", "b")
        for key in keys:
            assert (await b.do(Op.GET, key))[8:] == key + bytes(MEGABYTE)
        assert [each.cause for each in (await job.report()).memberships] == ["started"]

    run(body, tmp_path)


def test_a_broken_connection_sends_no_writes_again(tmp_path: Path, received: list[Any]) -> None:
    async def body(job: Job) -> None:
        await job.expect("a")
        a = job.agent("a")
        await job.formed(1)
        await a.add(b"count", 1)
        a.link.reconnect()
        assert await a.add(b"count", 1) == 2
        kinds = [each["type"] for each in received if each]
        assert "restore" not in kinds
        await restarted(job, "a")
        assert await a.add(b"count", 1) == 3
        kinds = [each["type"] for each in received if each]
        assert kinds.count("restore") == 1

    run(body, tmp_path)


def test_the_service_holds_one_copy_of_a_value(tmp_path: Path) -> None:
    """However often it is written."""

    async def body(job: Job) -> None:
        await job.expect("a", "b")
        writers = [job.agent("a"), job.agent("b")]
        await job.formed(1)
        before = memory_of(job)
        for _, writer in zip(range(30), itertools.cycle(writers)):
            await writer.do(Op.SET, b"key", values=(LARGE,))
        assert memory_of(job) - before < 12 * len(LARGE)

    run(body, tmp_path)


@pytest.mark.parametrize("op", [Op.APPEND, Op.QUEUE_PUSH, Op.SET], ids=lambda op: op.name)
def test_an_answer_does_not_grow_with_what_was_written(
    tmp_path: Path, received: list[Any], op: Op
) -> None:
    async def body(job: Job) -> None:
        await job.expect("a")
        a = job.agent("a")
        await job.formed(1)
        for _ in range(100):
            await a.do(op, b"key", values=(bytes(1000),))
        longest = max(len(str(each)) for each in received if each and each["type"] == "stored")
        assert longest < 200

    run(body, tmp_path)


def test_deleted_keys_leave_nothing_at_the_worker(tmp_path: Path) -> None:
    async def body(job: Job) -> None:
        await job.expect("a", "b")
        a, b = job.agent("a"), job.agent("b")
        await job.formed(1)
        for number in range(1500):  # more than one message asks to forget
            await a.do(Op.SET, b"%d" % number, values=(b"value",))
            await (b if number % 2 else a).do(Op.DELETE_KEY, b"%d" % number)
        await a.do(Op.SET, b"left", values=(b"1",))

        async def forgotten() -> None:
            kept = [write.key for agent in (a, b) for write in agent.link.store.writes]
            if kept != [b"left"]:
                raise ServiceUnavailableError(f"{len(kept)} writes are left")

        await until(forgotten)
        await restarted(job, "a", "b")
        assert (await b.do(Op.GET, b"left")).endswith(b"1")
        assert await b.do(Op.CHECK, b"3") == b"\x01"

    run(body, tmp_path)


def test_a_cancelled_wait_is_answered(tmp_path: Path) -> None:
    """Otherwise the worker could never confirm all answers below a number."""

    async def body(job: Job) -> None:
        await job.expect("a")
        a = job.agent("a")
        await job.formed(1)
        waiting = asyncio.ensure_future(a.do(Op.WAIT, b"never"))
        assert await a.add(b"count", 1) == 1
        waiting.cancel()
        await asyncio.wait([waiting])

        async def settled() -> None:
            if a.link.store.settled != 3:
                raise ServiceUnavailableError(str(a.link.store.settled))

        await until(settled)

    run(body, tmp_path)
