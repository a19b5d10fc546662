"""The next deadline of a registry, and the heartbeats that change a decision before it."""

from __future__ import annotations

from agent.membership.views import NOW, failure, hello
from ddpjob_agent.registry.decisions import decide
from ddpjob_agent.registry.effects import Effect
from ddpjob_agent.registry.messages import on_message
from ddpjob_agent.registry.registration import (
    on_disconnect,
    on_expectation,
    on_heartbeat,
    on_hello,
    on_silent_hosts,
)
from ddpjob_agent.registry.report import build_report
from ddpjob_agent.registry.state.registry_state import RegistryState, initial_state
from ddpjob_protocol.codec import encode
from ddpjob_protocol.messages.control import Expectation, Policy
from ddpjob_protocol.messages.membership import Cause, Member

DEADLINE, GRACE = 10.0, 0.5
HOST_DEADLINE = 3.0
POLICY = Policy(
    heartbeat_deadline=DEADLINE, reconnect_grace=GRACE, settle=0, host_deadline=HOST_DEADLINE
)


def job(workers: str = "abc") -> RegistryState:
    state = initial_state(term=1, boot=1, wall_offset=0.0)
    on_expectation(state, Expectation((*workers,), policy=POLICY), NOW)
    for name in workers:
        on_hello(state, hello(Member(name, f"{name}-first", "127.0.0.1", 1)), NOW)
    return state


def beat(state: RegistryState, now: float, workers: str = "abc") -> list[Effect]:
    return [on_heartbeat(state, name, now) for name in workers]


def test_the_next_deadline_is_that_of_the_worker_that_was_silent_longest() -> None:
    state = job()
    assert decide(state, NOW) == NOW + DEADLINE
    assert beat(state, NOW + 1, "ab") == [Effect.NOTHING] * 2
    assert decide(state, NOW + 1) == NOW + DEADLINE
    beat(state, NOW + 2, "c")
    assert decide(state, NOW + 2) == NOW + 1 + DEADLINE


def test_a_closed_connection_is_due_after_the_grace() -> None:
    state = job()
    decide(state, NOW)
    beat(state, NOW + 5)
    on_disconnect(state, "c", NOW + 5)
    assert decide(state, NOW + 5) == NOW + 5 + GRACE
    decide(state, NOW + 5 + GRACE)
    assert state.current
    assert state.current.cause is Cause.LOST


def test_blame_waits_for_the_last_message_and_for_no_deadline() -> None:
    state = job()
    decide(state, NOW)
    failed = {"type": "exited", "membership": "1.1.1", "failure": encode(failure())}
    on_message(state, "a", failed, NOW + 1)
    decide(state, NOW + 1)
    assert beat(state, NOW + 1.4) == [Effect.NOTHING] * 3, "too early to count"
    assert beat(state, NOW + 2) == [Effect.NOTHING, Effect.NOTHING, Effect.TURN]
    assert beat(state, NOW + 2.1) == [Effect.NOTHING] * 3, "once"
    decide(state, NOW + 2.1)
    assert not state.view.running, "the failure is blamed"


def test_a_suspect_that_is_heard_ends_the_doubt() -> None:
    state = job()
    decide(state, NOW)
    beat(state, NOW + 9, "a")
    on_disconnect(state, "c", NOW + 9)
    assert decide(state, NOW + 9 + GRACE) == NOW + DEADLINE, "b may be lost, too"
    assert beat(state, NOW + 9.6, "ab") == [Effect.NOTHING, Effect.TURN]
    decide(state, NOW + 9.6)
    assert state.current
    assert [member.worker for member in state.current.members] == ["a", "b"]


def test_a_lost_worker_that_is_heard_again_causes_a_turn() -> None:
    state = job("a")
    decide(state, NOW)
    decide(state, NOW + DEADLINE)
    assert not state.view.running
    assert beat(state, NOW + DEADLINE + 1, "a") == [Effect.TURN]
    decide(state, NOW + DEADLINE + 1)
    assert state.view.running


def test_a_worker_that_outlives_its_pods_deletion_causes_one_turn() -> None:
    state = job()
    decide(state, NOW)
    on_expectation(state, Expectation(("a", "b"), policy=POLICY), NOW)
    assert beat(state, NOW + GRACE / 2, "c") == [Effect.NOTHING]
    assert beat(state, NOW + GRACE, "c") == [Effect.TURN]
    assert beat(state, NOW + GRACE + 0.1, "c") == [Effect.NOTHING]
    decide(state, NOW + GRACE + 0.1)
    assert state.current
    assert state.current.cause is Cause.LEFT


def test_a_silent_host_has_a_deadline_of_its_own() -> None:
    state = job()
    decide(state, NOW)
    assert on_silent_hosts(state, {"c": NOW}) is Effect.TURN
    assert on_silent_hosts(state, {"c": NOW + 0.1}) is Effect.NOTHING, "it is silent since NOW"
    assert decide(state, NOW + 1) == NOW + HOST_DEADLINE
    decide(state, NOW + HOST_DEADLINE)
    assert state.current
    assert [member.worker for member in state.current.members] == ["a", "b"]
    assert state.current.cause is Cause.LOST


def test_live_mode_has_a_shorter_deadline_for_silent_hosts() -> None:
    state = job()
    state.update(live=True)
    decide(state, NOW)
    on_silent_hosts(state, {"c": NOW})
    assert decide(state, NOW) == NOW + POLICY.live_host_deadline


def test_a_host_that_acknowledges_again_has_the_deadline_of_its_heartbeat() -> None:
    state = job()
    decide(state, NOW)
    on_silent_hosts(state, {"b": NOW, "c": NOW})
    assert on_silent_hosts(state, {"b": NOW}) is Effect.TURN
    assert beat(state, NOW + 1, "b") == [Effect.NOTHING]
    assert decide(state, NOW + 1) == NOW + DEADLINE


def test_hosts_that_fall_silent_together_make_one_change() -> None:
    state = job("abcde")
    decide(state, NOW)
    on_silent_hosts(state, {"d": NOW})
    on_silent_hosts(state, {"d": NOW, "e": NOW + 0.2})
    assert decide(state, NOW + HOST_DEADLINE) == NOW + HOST_DEADLINE + 0.2, "e may be lost, too"
    decide(state, NOW + HOST_DEADLINE + 0.2)
    assert state.current
    assert [member.worker for member in state.current.members] == ["a", "b", "c"]


def test_a_lost_worker_with_an_open_connection_is_not_reported_as_registered() -> None:
    """Nothing closes the connection of a host that is cut off."""
    state = initial_state(term=1, boot=1, wall_offset=0.0)
    needs_all = Policy(minimum=3, heartbeat_deadline=DEADLINE, settle=0)
    on_expectation(state, Expectation((*"abc",), policy=needs_all), NOW)
    for name in "abc":
        on_hello(state, hello(Member(name, f"{name}-first", "127.0.0.1", 1)), NOW)
    decide(state, NOW)
    beat(state, NOW + DEADLINE, "ab")
    decide(state, NOW + DEADLINE)
    assert build_report(state, 1).workers == ("a", "b")
    beat(state, NOW + DEADLINE + 1)
    decide(state, NOW + DEADLINE + 1)
    assert build_report(state, 1).workers == ("a", "b", "c")
