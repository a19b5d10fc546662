"""The effect of each message: whether orders can differ after it, or the report only."""

from __future__ import annotations

from typing import Any

import pytest

from agent.membership.views import NOW, hello
from ddpjob_agent.registry.decisions import decide
from ddpjob_agent.registry.effects import Effect
from ddpjob_agent.registry.messages import on_message
from ddpjob_agent.registry.registration import on_expectation, on_heartbeat, on_hello
from ddpjob_agent.registry.state.registry_state import RegistryState, initial_state
from ddpjob_protocol.messages.agent import Failure
from ddpjob_protocol.messages.control import Expectation, Policy
from ddpjob_protocol.messages.membership import Member
from ddpjob_protocol.messages.warnings import unreachable

EXPECTED = Expectation(("a", "b"), policy=Policy(files=False))
FIRST, OTHER = "1.1.1", "1.1.0"
FAILURE = {"at": NOW, "summary": "rank 0: boom"}


def job(*, live: bool = False) -> RegistryState:
    state = initial_state(term=1, boot=1, wall_offset=0.0)
    on_expectation(state, EXPECTED, NOW)
    for name in EXPECTED.workers:
        first = hello(Member(name, f"{name}-first", "127.0.0.1", 1), live=live, ready=live)
        on_hello(state, first, NOW)
    decide(state, NOW)
    return state


def report(event: str, membership: str = FIRST, **more: Any) -> dict[str, Any]:
    content = {"event": event, "step": 10, **more}
    return {"type": "report", "membership": membership, "report": content}


BEAT = {"type": "beat", "processes": [{"rank": 0, "membership": FIRST, "step": 1, "where": "", "age": 0}]}  # fmt: skip
STOPS = {"type": "stops", "membership": FIRST}
SAVED = report("saved")
EXITED = {"type": "exited", "membership": FIRST, "live": False, "failure": None}


@pytest.mark.parametrize(
    ("message", "effect"),
    [
        (BEAT, Effect.NOTHING),
        ({"type": "beat"}, Effect.NOTHING),
        ({"type": "of a newer agent"}, Effect.NOTHING),
        (report("step"), Effect.REPORT),
        (report("step", OTHER), Effect.NOTHING),
        (report("resumed"), Effect.REPORT),
        (SAVED, Effect.TURN),
        (report("saved", OTHER), Effect.NOTHING),
        (report("saved", storages=2), Effect.REPORT),
        (unreachable(FIRST, "b").to_message(), Effect.REPORT),
        (unreachable(OTHER, "b").to_message(), Effect.NOTHING),
        ({"type": "asks", "membership": FIRST, "rank": 0}, Effect.NOTHING),
        ({"type": "steps_done", "membership": FIRST, "step": 3}, Effect.REPORT),
        (EXITED, Effect.TURN),
        ({**EXITED, "failure": FAILURE}, Effect.TURN),
        ({**EXITED, "membership": OTHER}, Effect.NOTHING),
        ({"type": "bye"}, Effect.TURN),
        ({"type": "live"}, Effect.TURN),
        ({"type": "ready"}, Effect.TURN),
        ({"type": "finished", "membership": FIRST}, Effect.TURN),
        ({"type": "finished", "membership": OTHER}, Effect.NOTHING),
        ({"type": "broken", "membership": FIRST, "why": "reset"}, Effect.TURN),
        ({"type": "broken", "membership": OTHER, "why": "reset"}, Effect.NOTHING),
        (STOPS, Effect.TURN),
        ({**STOPS, "membership": OTHER}, Effect.NOTHING),
        ({"type": "promise", "step": 3}, Effect.NOTHING),
        ({"type": "stopped", "membership": FIRST}, Effect.NOTHING),
        ({"type": "files", "scope": FIRST}, Effect.TURN),
    ],
    ids=lambda value: value["type"] if isinstance(value, dict) else value.name,
)
def test_effect_of_a_message(message: dict[str, Any], effect: Effect) -> None:
    assert on_message(job(), "a", message, NOW) is effect


@pytest.mark.parametrize(("finished_in", "counts"), [(FIRST, True), (OTHER, False)])
def test_who_finished_in_an_older_membership_has_not_finished_this_one(
    finished_in: str, *, counts: bool
) -> None:
    """By a message, and when the agent registers again."""
    state = job(live=True)
    on_message(state, "a", {"type": "finished", "membership": finished_in}, NOW)
    held = {"id": finished_in}
    again = hello(Member("b", "b-first", "127.0.0.1", 1), live=True, membership=held, finished=True)
    on_hello(state, again, NOW)
    rows = [state.workers.get(name) for name in "ab"]
    assert [row is not None and row.finished for row in rows] == [counts, counts]


@pytest.mark.parametrize("message", [{"type": "bye"}, STOPS, EXITED, SAVED])
def test_a_message_that_is_sent_again_causes_no_turn(message: dict[str, Any]) -> None:
    state = job()
    assert on_message(state, "a", message, NOW) is Effect.TURN
    assert on_message(state, "a", message, NOW) < Effect.TURN


def test_a_failure_in_live_mode_causes_a_turn_and_that_of_an_earlier_start_none() -> None:
    state = job(live=True)
    failed = {**EXITED, "failure": FAILURE}
    assert on_message(state, "a", failed, NOW) is Effect.NOTHING
    assert on_message(state, "a", {**failed, "live": True}, NOW) is Effect.TURN
    row = state.workers.get("a")
    assert row
    assert row.failure == Failure(NOW, "rank 0: boom")


def test_an_agreed_last_step_takes_a_turn_for_each_promise_and_stop() -> None:
    state = job(live=True)
    on_message(state, "b", {"type": "bye"}, NOW)
    decide(state, NOW)
    promise = {"type": "promise", "step": 7}
    assert on_message(state, "a", promise, NOW) is Effect.TURN
    assert on_message(state, "a", promise, NOW) is Effect.NOTHING
    on_message(state, "b", promise, NOW)
    decide(state, NOW)
    stopped = {"type": "stopped", "membership": FIRST}
    assert on_message(state, "b", stopped, NOW) is Effect.TURN
    assert on_message(state, "b", stopped, NOW) is Effect.NOTHING


def test_an_expectation_causes_a_turn_if_it_differs() -> None:
    state = job()
    assert on_expectation(state, Expectation(("a", "b"), policy=EXPECTED.policy), NOW) is Effect.NOTHING  # fmt: skip
    assert on_expectation(state, Expectation(("a",), policy=EXPECTED.policy), NOW) is Effect.TURN


def test_a_heartbeat_of_an_unknown_worker_has_no_effect() -> None:
    assert on_heartbeat(job(), "c", NOW) is Effect.NOTHING


def test_a_worker_that_is_no_member_says_nothing_about_the_membership() -> None:
    state = job()
    on_hello(state, hello(Member("c", "c-first", "127.0.0.1", 1), live=True), NOW)
    for message in (
        {"type": "live"},
        {"type": "broken", "membership": FIRST, "why": "it says so"},
        {"type": "steps_done", "membership": FIRST, "step": 10**6},
        {"type": "steps_done", "membership": OTHER, "step": 10**6},
    ):
        assert on_message(state, "c", message, NOW) is Effect.NOTHING
    assert (state.view.live, state.view.broken) == (False, None)
