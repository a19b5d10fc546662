"""Messages of agents to the service: with any content, it decides, orders and reports.

A report that the operator refuses would hide the job, so each one passes the operator's own parser.
"""

from __future__ import annotations

import json
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from agent.membership.views import NOW, hello
from ddpjob_agent.registry.decisions import decide
from ddpjob_agent.registry.messages import on_message
from ddpjob_agent.registry.orders import Orders
from ddpjob_agent.registry.registration import on_expectation, on_heartbeat, on_hello
from ddpjob_agent.registry.report import build_report
from ddpjob_agent.registry.state.registry_state import RegistryState, initial_state
from ddpjob_protocol.codec import DecodeError, encode
from ddpjob_protocol.messages.control import Expectation, Policy
from ddpjob_protocol.messages.membership import Member
from ddpjob_protocol.parsers.service_report import parse_report
from support.fuzzing import DEEP, fuzz, measured, mutated_json, size_of
from support.keys import SEAL

FIRST = "1.1.1"
WORKERS = ("a", "b")
FAILURE = {
    "at": NOW,
    "summary": "rank 0: boom",
    "traceback": "Traceback",
    "rank": 0,
    "exit_code": 1,
}
COPY = {"membership": FIRST, "seconds": 1.0, "digest": "ab" * 16, "size": 5}
FILES: dict[str, Any] = {
    "scope": FIRST,
    "copies": [COPY],
    "installed": "ab" * 16,
    "begun": True,
    "port": 9,
}
MEMBERSHIP: dict[str, Any] = {
    "id": "1.1.5",
    "members": [{"worker": "a", "incarnation": "a-1", "address": "10.0.0.1", "processes": 2}],
    "cause": "lost", "detail": "lost b", "failures": 1, "losses": 2, "after": None,
    "snapshot_step": 4, "repeated_steps": 3,
}  # fmt: skip
MESSAGES: tuple[dict[str, Any], ...] = (
    {"type": "report", "membership": FIRST, "report": {"event": "step", "step": 5, "metrics": {"l": 1}}},
    {"type": "report", "membership": FIRST, "report": {"event": "saved", "step": 5, "problem": "full"}},
    {"type": "report", "membership": FIRST, "report": {"event": "resumed", "step": 5, "loaded": True}},
    {"type": "beat", "processes": [{"rank": 0, "step": 1, "where": "a:7", "membership": FIRST, "age": 0}]},
    {"type": "exited", "membership": FIRST, "live": False, "failure": FAILURE},
    {"type": "exited", "membership": FIRST, "live": True, "failure": None},
    {"type": "broken", "membership": FIRST, "why": "reset by peer"},
    {"type": "warning", "reason": "Unreachable", "message": "cannot reach b", "ongoing": True},
    {"type": "files", **FILES},
    {"type": "asks", "membership": FIRST, "rank": 1},
    {"type": "stops", "membership": FIRST},
    {"type": "promise", "step": 9},
    {"type": "stopped", "membership": FIRST},
    {"type": "steps_done", "membership": FIRST, "step": 9},
    {"type": "live"},
    {"type": "ready"},
    {"type": "finished", "membership": FIRST},
    {"type": "bye"},
)  # fmt: skip
HELLO: dict[str, Any] = {
    "type": "hello", "protocol": 2, "membership": MEMBERSHIP,
    "member": {"worker": "a", "incarnation": "a-1", "address": "10.0.0.1", "processes": 2},
    "running": True, "live": False, "ready": False, "finished": False, "stops": False, "done": False,
    "failure": FAILURE, "stopped": FIRST, "steps_done": {"membership": FIRST, "step": 7},
    "reports": [{"event": "step", "step": 5, "metrics": {"l": 1}}], "files": FILES, "port": 1, "reach": 2,
}  # fmt: skip


def job() -> RegistryState:
    state = initial_state(term=1, boot=1, wall_offset=0.0)
    on_expectation(state, Expectation(WORKERS, policy=Policy(files=True)), NOW)
    for name in WORKERS:
        on_hello(state, hello(Member(name, f"{name}-first", "127.0.0.1", 1)), NOW)
    decide(state, NOW)
    return state


def check(state: RegistryState) -> None:
    """Check that the service still decides, orders and reports, some time later."""
    for seconds in (0.0, 1.0, 400.0):
        for worker in WORKERS:
            on_heartbeat(state, worker, NOW + seconds)
        decide(state, NOW + seconds)
        orders = Orders(state, SEAL)
        orders.update(NOW + seconds)
        for row in state.workers.rows():
            json.loads(orders.order_for(row.member.worker).to_json())
        text = json.dumps(encode(build_report(state, 1)), allow_nan=False)
        parse_report(json.loads(text))
    for line in state.refused_reports.take():
        assert len(line) < 5000
        assert line.isprintable(), "a peer could write lines of its own into the log"


@fuzz(100)
@given(st.lists(mutated_json(st.sampled_from(MESSAGES), 1), min_size=1, max_size=4))
@example([{**MESSAGES[0], "report": {"event": "step", "step": 1, "metrics": DEEP}}])
@example([{**MESSAGES[4], "failure": {**FAILURE, "summary": "x" * 300_000}}])
@example([{**MESSAGES[4], "failure": {**FAILURE, "traceback": "\ud800"}}])
def test_messages_change_the_state_or_are_refused(messages: list[Any]) -> None:
    def read() -> RegistryState:
        state = job()
        for message in messages:
            if isinstance(message, dict) and isinstance(message.get("type"), str):
                on_message(state, "a", message, NOW)
        return state

    check(measured(read, size_of(messages), calls=1000))


@fuzz(100)
@given(mutated_json(st.just(HELLO)))
@example({**HELLO, "membership": {**MEMBERSHIP, "detail": "x" * 300_000}})
@example({**HELLO, "membership": {**MEMBERSHIP, "detail": "\ud800"}})
@example({**HELLO, "membership": {**MEMBERSHIP, "members": []}})
@example({**HELLO, "membership": {**MEMBERSHIP, "failures": 2**31 + 1}})
@example({**HELLO, "membership": {**MEMBERSHIP, "members": [HELLO["member"]] * 2}})
@example(
    {
        **HELLO,
        "membership": {**MEMBERSHIP, "members": [{**HELLO["member"], "processes": 65536}] * 999},
    }
)
def test_a_hello_registers_or_is_refused(message: Any) -> None:
    if not isinstance(message, dict) or "member" not in message:
        return

    def read() -> RegistryState:
        state = initial_state(term=1, boot=1, wall_offset=0.0)
        on_expectation(state, Expectation(WORKERS, policy=Policy(files=True)), NOW)
        on_hello(state, message, NOW)
        return state

    try:
        state = measured(read, size_of(message), calls=1000)
    except DecodeError:
        return
    on_hello(state, hello(Member("b", "b-first", "127.0.0.1", 1)), NOW)
    check(state)
