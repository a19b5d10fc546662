"""The rendezvous service as a real process, talked to by real links: what survives what."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
from typing import TYPE_CHECKING

import pytest

from agent.service.serving import (
    IMPATIENT,
    Agent,
    Job,
    frame,
    hello_of,
    run,
    until,
)
from ddpjob_agent.c10d.protocol import Op, Request
from ddpjob_agent.net.framing import FramingError, RejectedError, WrongKeyError, connect
from ddpjob_agent.net.service_connection import ServiceConnection
from ddpjob_agent.net.store_requests import StaleMembershipError
from ddpjob_operator.rendezvous.client import (
    ServiceClient,
    ServiceUnavailableError,
    connect_directly,
)
from ddpjob_protocol.keys.credentials import JobKey
from ddpjob_protocol.messages.agent import PROTOCOL
from ddpjob_protocol.messages.control import Expectation
from support.keys import ANOTHER_KEY, KEY, credential

if TYPE_CHECKING:
    from pathlib import Path

HOSTS = ("127.0.0.1", "::1")


@pytest.mark.parametrize("key", [ANOTHER_KEY, JobKey(b"")], ids=["of another job", "none"])
def test_without_the_key_nobody_gets_in(tmp_path: Path, key: JobKey) -> None:
    async def body(job: Job) -> None:
        await job.expect("a")
        stranger = ServiceClient(connect_directly("127.0.0.1", job.service.port), key.operator)
        with pytest.raises(ServiceUnavailableError, match="403"):
            await stranger.report()
        with pytest.raises(ServiceUnavailableError, match="403"):
            await stranger.expect(Expectation(()))
        with pytest.raises(WrongKeyError):
            await connect("127.0.0.1", job.service.port, credential("a", key))
        assert (await job.report()).workers == ()

    run(body, tmp_path)


@pytest.mark.parametrize(
    "data",
    [
        b"\x00" * 64,
        b"GET /report HTTP/1.1\r\n" + b"x" * 100_000,
        b"PUT /expected HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n",
        b"DDPJ2" + b"n" * 16 + b"\x01a" + b"p" * 32 + frame(hello_of("intruder")),
        b"DD",
    ],
    ids=["zeros", "endless header", "endless body", "wrong proof", "half a word"],
)
def test_garbage_ends_a_connection_and_nothing_else(tmp_path: Path, data: bytes) -> None:
    async def body(job: Job) -> None:
        await job.expect("a")
        job.agent("a")
        await job.formed(1)
        reader, writer = await asyncio.open_connection("127.0.0.1", job.service.port)
        writer.write(data)
        writer.write_eof()
        said = b""
        with contextlib.suppress(ConnectionError):
            said = await reader.read()
        writer.close()
        assert b'"type"' not in said, "no order is given"
        assert (await job.report()).workers == ("a",)

    run(body, tmp_path)


def test_agents_and_operator_connect_over_ipv4_and_ipv6(tmp_path: Path) -> None:
    async def body(job: Job) -> None:
        await job.expect("a", "b")
        job.agents = [
            Agent(each, job.service.port, at) for each, at in zip("ab", HOSTS, strict=True)
        ]
        await job.formed(1)
        for host in HOSTS:
            client = ServiceClient(connect_directly(host, job.service.port), KEY.operator)
            assert (await client.report()).workers == ("a", "b")

    run(body, tmp_path)


def test_a_restarted_service_gets_membership_and_store_back(tmp_path: Path) -> None:
    async def body(job: Job) -> None:
        await job.expect("a", "b")
        a, b = job.agent("a"), job.agent("b")
        await job.formed(1)
        assert await a.add(b"count", 1) == 1
        assert await b.add(b"count", 2) == 3
        await a.do(Op.SET, b"by a", values=(b"first",))
        await b.do(Op.SET, b"by a", values=(b"second",))
        waiting = asyncio.ensure_future(b.do(Op.WAIT, b"later"))
        orders = [list(a.orders), list(b.orders)]
        await job.service.kill()
        adding = asyncio.ensure_future(a.add(b"count", 10))
        job.service.start()
        await job.expect("a", "b")
        assert await adding == 13
        assert (await b.do(Op.GET, b"by a")).endswith(b"second")
        await a.do(Op.SET, b"later", values=(b"",))
        assert await waiting == b"\x00"
        report = await job.report()
        assert report.boot == 2
        assert [(each.id, each.cause) for each in report.memberships] == [("1.1.1", "started")]
        assert [a.orders[: len(orders[0])], b.orders[: len(orders[1])]] == orders
        assert "halt" not in [*a.orders[len(orders[0]) :], *b.orders[len(orders[1]) :]]

    run(body, tmp_path)


def test_a_restarted_service_answers_when_all_members_are_back(tmp_path: Path) -> None:
    """Before, it could not know of a key that only an absent one wrote."""

    async def body(job: Job) -> None:
        await job.expect("a", "b")
        a, b = job.agent("a"), job.agent("b")
        await job.formed(1)
        await b.do(Op.SET, b"by b", values=(b"1",))
        b.task.cancel()
        await asyncio.wait([b.task])
        await job.service.kill()
        job.service.start()
        await job.expect("a", "b")

        async def a_is_back() -> None:
            if (await job.client.report()).workers != ("a",):
                raise ServiceUnavailableError

        await until(a_is_back)
        checking = asyncio.ensure_future(a.do(Op.CHECK, b"by b"))
        await job.report()
        b.task = asyncio.ensure_future(b.link.run())
        assert await checking == b"\x00", "it is there"
        assert [each.cause for each in (await job.report()).memberships] == ["started"]

    run(body, tmp_path)


def test_steps_to_be_done_again_are_known_to_a_restarted_service_too(tmp_path: Path) -> None:
    """Agents report the last steps of ended processes, and the step from which training resumes."""

    async def body(job: Job) -> None:
        await job.expect("a", "b")
        a, b = job.agent("a"), job.agent("b")
        await job.formed(1)
        b.task.cancel()
        await asyncio.wait([b.task])
        job.agents.remove(b)
        await job.formed(2)
        steps_done = {"membership": "1.1.1", "step": 23}
        resumed = {"event": "resumed", "step": 14, "loaded": True}
        a.link.send({"type": "steps_done", **steps_done})
        a.link.send({"type": "report", "membership": "1.1.2", "report": resumed})

        async def counted() -> None:
            report = await job.report()
            again = [each.repeated_steps for each in report.memberships[-1:]]
            if (report.repeated_steps, again) != (9, [9]):
                raise ServiceUnavailableError(str(report))

        await until(counted)
        a.known = {"steps_done": steps_done, "reports": [resumed]}
        await job.service.kill()
        job.service.start()
        await job.expect("a")
        await until(counted)
        assert (await job.report()).boot == 2

    run(body, tmp_path)


def test_something_else_that_answers_is_not_taken_for_a_refusal() -> None:
    """A proxy closes connections while a Service is not known everywhere yet: the agent retries."""

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n" + b"x" * 100)
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1")
        async with server:
            with pytest.raises(FramingError, match="the peer answered b'HTTP/'"):
                await connect("127.0.0.1", server.sockets[0].getsockname()[1], credential("a"))

    asyncio.run(main())


def test_an_agent_of_another_protocol_is_rejected_with_the_reason(tmp_path: Path) -> None:
    async def body(job: Job) -> None:
        await job.expect("a")
        a = Agent("a", job.service.port)
        a.link = ServiceConnection(
            "127.0.0.1", job.service.port, credential("a"),
            lambda: {**hello_of("a"), "protocol": PROTOCOL + 1}, lambda _: None,
        )  # fmt: skip
        a.task.cancel()
        with pytest.raises(RejectedError, match=f"protocol {PROTOCOL} is spoken here"):
            await a.link.run()

    run(body, tmp_path)


def test_a_restarted_service_misses_a_member_that_died_meanwhile(tmp_path: Path) -> None:
    async def body(job: Job) -> None:
        await job.expect("a", "b", policy=IMPATIENT)
        a, b = job.agent("a"), job.agent("b")
        await job.formed(1)
        await job.service.kill()
        b.task.cancel()
        await asyncio.wait([b.task])
        job.agents.remove(b)
        job.service.start()
        await job.expect("a", "b", policy=IMPATIENT)
        await job.formed(2)
        assert a.membership is not None
        assert str(a.membership.id) == "1.2.2"
        assert [(m.worker, a.membership.cause) for m in a.membership.members] == [("a", "lost")]

    run(body, tmp_path)


def test_a_write_is_applied_once_though_its_answer_was_lost(tmp_path: Path) -> None:
    """A proxy passes the request on and cuts the connection before the answer."""

    async def body(job: Job) -> None:
        lose_next_answer = asyncio.Event()

        async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            there, back = await asyncio.open_connection("127.0.0.1", job.service.port)

            async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
                while data := await source.read(65536):
                    if b'"stored"' in data and lose_next_answer.is_set():
                        lose_next_answer.clear()
                        break
                    sink.write(data)
                sink.close()

            with contextlib.suppress(ConnectionError):
                ways = [pump(reader, back), pump(there, writer)]
                await asyncio.wait(
                    [asyncio.ensure_future(way) for way in ways],
                    return_when=asyncio.FIRST_COMPLETED,
                )
            writer.close()
            back.close()

        server = await asyncio.start_server(proxy, "127.0.0.1", 0)
        await job.expect("a")
        a = job.agent("a", server.sockets[0].getsockname()[1])
        await job.formed(1)
        assert await a.add(b"count", 1) == 1
        lose_next_answer.set()
        assert await a.add(b"count", 1) == 2
        assert not lose_next_answer.is_set(), "the answer was lost"
        assert await a.add(b"count", 1) == 3
        assert [each.cause for each in (await job.report()).memberships] == ["started"]
        server.close()

    run(body, tmp_path)


def test_torchruns_are_answered_when_all_have_come(tmp_path: Path) -> None:
    """With what the last one wrote; any other key keeps to torch's rules."""

    async def body(job: Job) -> None:
        await job.expect("a", "b")
        a, b = job.agent("a"), job.agent("b")
        await job.formed(1)
        key = b"/torch.rendezvous.any"
        assert (await a.do(Op.COMPARE_SET, key, values=(b"", b"0"))).endswith(b"0")
        first = asyncio.ensure_future(a.do(Op.COMPARE_SET, key, values=(b"0", b"a")))
        while not (await b.do(Op.GET, key)).endswith(b"a"):
            assert not first.done()
        assert (await b.do(Op.COMPARE_SET, b"/other", values=(b"", b"x"))).endswith(b"x")
        assert not first.done()
        lost_race = await b.do(Op.COMPARE_SET, key, values=(b"0", b"b"))
        assert lost_race.endswith(b"a")
        assert not first.done()
        second = await b.do(Op.COMPARE_SET, key, values=(b"a", b"a+b"))
        assert await first == second
        assert second.endswith(b"a+b")
        third = await a.do(Op.COMPARE_SET, key, values=(b"a+b", b"alive"))
        assert third.endswith(b"alive"), "from now on at once"

    run(body, tmp_path)


def test_torchruns_read_and_write_one_after_another(tmp_path: Path) -> None:
    """Each with one read and one write, however many join at once."""

    async def body(job: Job) -> None:
        names = [f"w{number}" for number in range(12)]
        await job.expect(*names)
        agents = [job.agent(name) for name in names]
        await job.formed(1)
        key, requests = b"/torch.rendezvous.any", 0

        async def join(agent: Agent) -> bytes:
            nonlocal requests
            state = (await agent.do(Op.GET, key))[8:]
            while True:
                mine = state + agent.member.worker.encode() + b" "
                requests += 1
                found = (await agent.do(Op.COMPARE_SET, key, values=(state, mine)))[8:]
                if agent.member.worker.encode() + b" " in found:
                    return found
                state = found

        await agents[0].do(Op.COMPARE_SET, key, values=(b"", b"none "))
        states = await asyncio.gather(*map(join, agents))
        assert set(states[0].split()) == {b"none", *(name.encode() for name in names)}
        assert set(states) == {states[0]}, "all are answered with the state of the last one"
        assert requests == len(names)

    run(body, tmp_path)


def test_a_worker_with_a_superseded_membership_is_stopped(tmp_path: Path) -> None:
    """A worker that was cut off returns with its old membership, whose keys are deleted."""

    async def body(job: Job) -> None:
        await job.expect("a", "b")
        a, b = job.agent("a"), job.agent("b")
        await job.formed(1)
        await b.do(Op.SET, b"old", values=(b"1",))
        b.task.cancel()
        await asyncio.wait([b.task])
        job.agents.remove(b)
        await job.formed(2)
        back = job.agent("b")
        back.member, back.membership, back.running = b.member, b.membership, True
        back.seal = b.seal
        back.link.bind_store(b.link.membership)

        async def halted() -> None:
            if back.orders[-1:] != ["halt"]:
                raise ServiceUnavailableError(str(back.orders))

        await until(halted)
        with pytest.raises(StaleMembershipError):
            await back.do(Op.GET, b"old")
        back.link.bind_store(b.link.membership, block_stale_requests=True)
        unanswered = asyncio.ensure_future(back.do(Op.GET, b"old"))
        assert int.from_bytes(await a.do(Op.GETNUMKEYS), "little") == 0
        assert not unanswered.done(), "its torchrun waits while the processes do their last step"
        assert back.membership is not None
        back.link.unbind_store(str(back.membership.id))
        stale = f"its membership {back.membership.id} is no longer the current one"
        with pytest.raises(StaleMembershipError, match=f"^{re.escape(stale)}$"):
            await unanswered
        count = await a.do(Op.GETNUMKEYS)
        assert int.from_bytes(count, "little") == 0, "a fresh key space"
        old = str(back.membership.id)
        a.link.bind_store(old)
        with pytest.raises(StaleMembershipError):
            await a.link.execute(Request(Op.GETNUMKEYS), old)

    run(body, tmp_path)


def test_a_service_that_stood_still_loses_nobody(tmp_path: Path) -> None:
    async def body(job: Job) -> None:
        await job.expect("a", "b", policy=IMPATIENT)
        job.agent("a")
        job.agent("b")
        await job.formed(1)
        job.service.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(2 * IMPATIENT.heartbeat_deadline)  # the stall is the test
        job.service.process.send_signal(signal.SIGCONT)
        before = [len(agent.orders) for agent in job.agents]
        report = await job.report()
        assert report.workers == ("a", "b")
        assert [each.cause for each in report.memberships] == ["started"]
        assert [len(agent.orders) for agent in job.agents] == before

    run(body, tmp_path)


def test_a_long_poll_does_not_return_at_every_step(tmp_path: Path) -> None:
    async def body(job: Job) -> None:
        agent = job.agent("a")
        await job.expect("a")
        await job.formed(1)

        async def trained(step: int) -> None:
            event = {"event": "step", "step": step, "total": 9}
            membership = str(agent.membership and agent.membership.id)
            agent.link.send({"type": "report", "membership": membership, "report": event})

            async def known() -> None:
                if (await job.report()).step != step:
                    raise ServiceUnavailableError("not there yet")

            await until(known)

        await trained(1)
        seen = await job.report()
        news = asyncio.ensure_future(job.client.report(seen.version, 60, only_news=True))
        await trained(2)
        assert not news.done()
        job.agent("b")
        told = await news
        assert (told.step, told.workers) == (2, ("a", "b"))

    run(body, tmp_path)
