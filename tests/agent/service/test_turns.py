"""The turns of a service: when they happen, what they cost, and what they survive."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import time
from typing import TYPE_CHECKING, Any

import pytest

from agent.membership.views import failure, hello
from ddpjob_agent.net.framing import Connection, connect
from ddpjob_agent.registry import decisions, order_text
from ddpjob_agent.registry.effects import Effect
from ddpjob_agent.registry.state.registry_state import initial_state
from ddpjob_agent.service import server, turns
from ddpjob_agent.service.turns import Turns
from ddpjob_operator.local.simulated.rendezvous_process import free_port
from ddpjob_operator.rendezvous.client import ServiceClient, connect_directly
from ddpjob_protocol import codec
from ddpjob_protocol.messages.agent import PROTOCOL, Message
from ddpjob_protocol.messages.control import Expectation, Policy, Report
from ddpjob_protocol.messages.membership import Member
from support.keys import KEY, credential

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

PATIENCE_SECONDS = 60.0  # for something that happens at once
ENCODINGS = 2  # of a membership: its members, and the rest
NAMES = tuple(f"w-{number:02}" for number in range(30))
POLICY = Policy(settle=0, heartbeat_deadline=3600, reconnect_grace=0, join_policy="Immediate")


@pytest.fixture(autouse=True)
def _no_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "TICK_SECONDS", 3600.0)


class Counted:
    """A function of the service that counts its calls, and fails while `error` is set."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.calls = 0
        self.error: Exception | None = None

    def __call__(self, *arguments: Any) -> Any:
        self.calls += 1
        if self.error:
            raise self.error
        return self.function(*arguments)


@pytest.fixture
def decide(monkeypatch: pytest.MonkeyPatch) -> Counted:
    """Return the decisions: one for each turn."""
    counted = Counted(decisions.decide)
    monkeypatch.setattr(server, "decide", counted)
    return counted


@pytest.fixture
def encode(monkeypatch: pytest.MonkeyPatch) -> Counted:
    """Return the encodings of memberships."""
    counted = Counted(codec.encode)
    monkeypatch.setattr(order_text, "encode", counted)
    return counted


class Job:
    """A service in this process, with agents that are connections only."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.client = ServiceClient(connect_directly("127.0.0.1", port), KEY.operator)
        self.agents: dict[str, Connection] = {}

    async def joined(self, *names: str) -> None:
        """Let these workers train together, as the first membership."""
        await self.client.expect(Expectation(names, policy=POLICY))
        for name in names:
            self.agents[name] = await connect("127.0.0.1", self.port, credential(name))
            first = hello(Member(name, name, "127.0.0.1", 1), entries=[])
            self.agents[name].send({"type": "hello", "protocol": PROTOCOL, **first})
        for name in names:
            await self.ordered(name, "1.1.1")

    async def ordered(self, name: str, membership: str) -> None:
        """Wait for the order of this membership; the agent receives no other one after it."""
        while (order := await self.received(name))["type"] != "run":
            assert order["type"] == "halt"
        assert order["id"] == membership

    async def received(self, name: str) -> Message:
        message = await self.agents[name].receive()
        assert message is not None
        return await self.received(name) if message["type"] == "probe" else message

    async def beats(self, name: str) -> None:
        """Send a heartbeat, and wait for the answer; the agent receives nothing else."""
        self.agents[name].send({"type": "beat"})
        assert await self.received(name) == {"type": "beat"}


@contextlib.asynccontextmanager
async def a_job() -> AsyncIterator[Job]:
    port = free_port()
    service = server.RendezvousServer(initial_state(1, 1, 0.0), KEY)
    task = asyncio.ensure_future(service.run("127.0.0.1", port))
    job = Job(port)
    while not task.done():
        with contextlib.suppress(OSError):
            (await asyncio.open_connection("127.0.0.1", port))[1].close()
            break
        await asyncio.sleep(0)
    try:
        yield job
    finally:
        for agent in job.agents.values():
            agent.close()
        task.cancel()
        await asyncio.wait([task])


def run(body: Callable[[Job], Awaitable[None]]) -> None:
    async def main() -> None:
        async with a_job() as job:
            await asyncio.wait_for(body(job), PATIENCE_SECONDS)

    asyncio.run(main())


def test_a_decision_that_waits_for_a_message_asks_for_it() -> None:
    async def body(job: Job) -> None:
        await job.joined(*NAMES)
        failed = {"type": "exited", "membership": "1.1.1", "failure": codec.encode(failure())}
        job.agents[NAMES[0]].send(failed)
        for name in NAMES:
            assert await job.received(name) == {"type": "ask"}
            await job.beats(name)
        for name in NAMES:
            assert (await job.received(name))["type"] == "halt"

    run(body)


def test_heartbeats_and_steps_cause_no_turn(decide: Counted, encode: Counted) -> None:
    step = {"event": "step", "step": 1, "total": 9}

    async def body(job: Job) -> None:
        await job.joined(*NAMES)
        before = decide.calls, encode.calls
        for name in NAMES:
            report = {"type": "report", "membership": "1.1.1", "report": step}
            job.agents[name].send(report)
            await job.beats(name)
        assert (decide.calls, encode.calls) == before

    run(body)


def test_a_change_is_one_encoding_and_one_order_for_each(decide: Counted, encode: Counted) -> None:
    async def body(job: Job) -> None:
        await job.joined(*NAMES)
        assert encode.calls == ENCODINGS
        job.agents.pop(NAMES[0]).close()
        for name in NAMES[1:]:
            await job.ordered(name, "1.1.2")
            await job.beats(name)
        before = decide.calls
        job.agents[NAMES[1]].send({"type": "stops", "membership": "1.1.2"})
        while decide.calls == before:
            await job.beats(NAMES[1])
        assert encode.calls == 2 * ENCODINGS

    run(body)


@pytest.mark.parametrize("poison", ['{"kind":"report"}', "[]", "{"])
def test_a_message_that_cannot_be_read_ends_its_session_only(poison: str) -> None:
    async def body(job: Job) -> None:
        await job.joined("a", "b")
        job.agents["a"].send_json(poison.encode())
        assert await job.agents["a"].receive() is None, "the connection is closed"
        await job.ordered("b", "1.1.2")
        await job.beats("b")

    run(body)


def test_a_store_request_that_cannot_be_served_is_refused() -> None:
    async def body(job: Job) -> None:
        await job.joined("a", "b")
        odd = base64.b64encode(b"?").decode()
        job.agents["a"].send({"type": "store", "id": 1, "membership": "1.1.1", "data": odd})
        answer = {"type": "stored", "id": 1, "data": "", "refused": "unknown command 63"}
        assert answer.items() <= (await job.received("a")).items()
        await job.beats("a")

    run(body)


def test_a_turn_that_fails_is_reported_until_one_succeeds(
    decide: Counted, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(job: Job) -> None:
        await job.joined("a", "b")
        seen = await job.client.report()
        decide.error = TypeError("'<' not supported")
        await job.client.expect(Expectation(("a", "b", "c"), policy=POLICY))
        failing = await until_reported(job, seen, warnings=1)
        (warning,) = failing.warnings
        assert (warning.reason, warning.worker) == ("RendezvousFails", "")
        assert "TypeError: '<' not supported" in warning.message
        assert failing.workers == ("a", "b")
        assert "a turn of the rendezvous service failed" in caplog.text
        decide.error = None
        await job.client.expect(Expectation(("a", "b"), policy=POLICY))
        assert not (await until_reported(job, failing, warnings=0)).warnings
        await job.beats("a")

    run(body)


async def until_reported(job: Job, seen: Report, warnings: int) -> Report:
    while len(seen.warnings) != warnings:
        seen = await job.client.report(seen.version, 30)
    return seen


class Steps:
    """The content of turns in a test."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.more = asyncio.Event()
        self.failing: Exception | None = None
        self.deadline: float | None = None
        self.seconds = 0.0  # that each turn takes
        self.times: list[float] = []

    def take(self, _now: float, _late: float) -> float | None:
        self._did("turn")
        self.times.append(time.monotonic())
        while time.monotonic() < self.times[-1] + self.seconds:
            pass
        deadline, self.deadline = self.deadline, None
        if self.failing:
            raise self.failing
        return deadline

    def publish(self) -> None:
        self._did("report")

    def on_failure(self, error: str, _now: float) -> None:
        self._did(error)

    def _did(self, what: str) -> None:
        self.done.append(what)
        self.more.set()

    async def until(self, *done: str) -> None:
        while len(self.done) < len(done):
            self.more.clear()
            await asyncio.wait_for(self.more.wait(), PATIENCE_SECONDS)
        assert self.done == [*done]


def test_turns_follow_effects_and_deadlines() -> None:
    async def main() -> None:
        steps = Steps()
        planned = Turns(steps)
        for effect in (Effect.TURN, Effect.REPORT, Effect.NOTHING, Effect.TURN):
            planned.on_effect(effect)
        await steps.until("turn", "report")
        planned.on_effect(Effect.REPORT)
        planned.on_effect(Effect.REPORT)
        await steps.until("turn", "report", "report")
        steps.deadline = time.monotonic()
        planned.on_effect(Effect.TURN)
        await steps.until(*["turn", "report", "report"], *["turn", "report"] * 2)
        planned.close()

    asyncio.run(main())


def test_turns_leave_as_much_time_as_they_take() -> None:
    async def main() -> None:
        steps = Steps()
        planned = Turns(steps)
        steps.seconds = 0.02
        planned.start()
        await steps.until("turn", "report")
        planned.on_effect(Effect.TURN)
        await steps.until(*["turn", "report"] * 2)
        first, second = steps.times
        assert second - first >= 2 * steps.seconds
        planned.close()

    asyncio.run(main())


def test_a_turn_begins_when_all_that_has_arrived_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many workers join: each message arrives in another pass of the event loop."""

    async def main() -> None:
        monkeypatch.setattr(turns, "GATHER_SECONDS", 3600.0)
        steps = Steps()
        planned = Turns(steps)
        for _ in range(1000):
            planned.on_effect(Effect.TURN)
            await asyncio.sleep(0)
        assert steps.done == []
        await steps.until("turn", "report")
        planned.close()

    asyncio.run(main())


def test_messages_without_a_pause_delay_no_turn_for_ever() -> None:
    async def main() -> None:
        steps = Steps()
        planned = Turns(steps)
        while not steps.done:
            planned.on_effect(Effect.TURN)
            await asyncio.sleep(0)
        planned.close()

    asyncio.run(asyncio.wait_for(main(), PATIENCE_SECONDS))


def test_turns_go_on_after_a_failure() -> None:
    async def main() -> None:
        steps = Steps()
        planned = Turns(steps)
        steps.failing = KeyError("w")
        planned.start()
        await steps.until("turn", "KeyError: 'w'")
        steps.failing = None
        planned.on_effect(Effect.TURN)
        await steps.until("turn", "KeyError: 'w'", "turn", "report")
        planned.close()

    asyncio.run(main())
