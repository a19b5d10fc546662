"""The policy for processes that stay (L2), as tables: a view and a time in, one decision out."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from agent.membership.views import NOW, failure, membership, names, running, worker
from ddpjob_agent.membership.live_policy import BROKEN_SECONDS
from ddpjob_agent.membership.planned_change import PROMISE_SECONDS
from ddpjob_agent.membership.policy import decide_membership
from ddpjob_agent.membership.state import Action, Decision, MembershipState, WorkerState
from ddpjob_protocol.messages.membership import Cause

ABC = membership("a", "b", "c")


def ready(name: str, **changes: Any) -> WorkerState:
    return worker(name, **{"ready_at": 0.0, **changes})


def live(*workers: WorkerState, **changes: Any) -> MembershipState:
    return running(ABC, *workers, live=True, **changes)


def decide(*workers: WorkerState, **changes: Any) -> Decision:
    return decide_membership(live(*workers, **changes), NOW)


def test_all_is_well() -> None:
    assert decide(ready("a"), ready("b"), ready("c")).action is Action.KEEP


def test_lost_member_is_left_behind_at_once() -> None:
    gone = ready("b", closed_at=NOW - 1)
    decision = decide(ready("a"), gone, ready("c"))
    assert decision.action is Action.FORM
    assert decision.membership is not None
    assert names(decision.membership) == ["a", "c"]
    assert decision.membership.cause is Cause.LOST
    assert decision.membership.after is None


def test_failed_member_backs_off_and_the_others_continue() -> None:
    failed = ready("b", exit_at=NOW, failure=failure())
    decision = decide(ready("a"), failed, ready("c"), formed_at=NOW - 1)
    assert decision.action is Action.FORM
    assert decision.membership is not None
    assert names(decision.membership) == ["a", "c"]
    assert decision.membership.cause is Cause.FAILED
    assert decision.membership.failures == 1
    assert "boom" in decision.membership.detail
    assert (decision.failed, decision.rest_until, decision.counts) == (("b",), NOW + 5, True)


def test_after_health_the_failed_member_starts_again_at_once() -> None:
    failed = ready("b", exit_at=NOW, failure=failure())
    decision = decide(ready("a"), failed, ready("c"), formed_at=NOW - 30, failures_in_a_row=2)
    assert (decision.rest_until, decision.failures_in_a_row) == (NOW, 0)


def test_a_failure_that_all_have_in_one_membership_counts_once() -> None:
    again = ready("b", exit_at=NOW, failure=failure(), failed_in="1.1.1")
    decision = decide(ready("a"), again, ready("c"), failures=1, counted_in="1.1.1")
    assert (decision.action, decision.counts) == (Action.FORM, False)
    assert decision.membership is not None
    assert decision.membership.failures == 1


def test_the_budget_of_failures_ends_the_job() -> None:
    failed = ready("b", exit_at=NOW, failure=failure())
    decision = decide(ready("a"), failed, ready("c"), failures=3)
    assert decision.action is Action.FAIL
    assert "failure 4, 3 restarts allowed" in decision.reason


def test_failure_that_cannot_be_helped_ends_the_job() -> None:
    failed = ready("b", exit_at=NOW, failure=failure(permanent=True))
    decision = decide(ready("a"), failed, ready("c"))
    assert decision.action is Action.FAIL


def test_broken_connections_wait_until_the_lost_member_is_known() -> None:
    broken = {"broken": failure(), "broken_at": NOW - 1}
    decision = decide(ready("a"), ready("b"), ready("c"), **broken)
    assert (decision.action, decision.again_at) == (Action.KEEP, NOW - 1 + BROKEN_SECONDS)
    gone = ready("b", closed_at=NOW - 1)
    decision = decide(ready("a"), gone, ready("c"), **broken)
    assert decision.membership is not None
    assert (decision.membership.cause, decision.counts) == (Cause.LOST, False)


def test_if_no_member_is_lost_the_same_members_connect_again() -> None:
    broken = {"broken": failure(), "broken_at": NOW - BROKEN_SECONDS}
    decision = decide(ready("a"), ready("b"), ready("c"), **broken)
    assert decision.action is Action.FORM
    assert decision.membership is not None
    assert names(decision.membership) == ["a", "b", "c"]
    assert (decision.membership.cause, decision.membership.after) == (Cause.FAILED, None)
    assert (decision.membership.failures, decision.counts) == (1, True)
    assert "boom" in decision.membership.detail
    assert decision.failed == ()


def test_connections_that_always_break_end_the_job() -> None:
    broken = {"broken": failure(), "broken_at": NOW - BROKEN_SECONDS, "failures": 3}
    decision = decide(ready("a"), ready("b"), ready("c"), **broken)
    assert decision.action is Action.FAIL
    assert "failure 4, 3 restarts allowed" in decision.reason


def test_failure_beside_a_loss_is_its_consequence() -> None:
    gone = ready("a", closed_at=NOW - 1)
    decision = decide(gone, ready("b", exit_at=NOW, failure=failure()), ready("c"))
    assert decision.membership is not None
    assert names(decision.membership) == ["c"]
    assert decision.membership.cause is Cause.LOST
    assert (decision.failed, decision.rest_until, decision.counts) == (("b",), NOW, False)


def test_death_that_looks_like_an_echo_waits_for_news() -> None:
    echo = ready("b", exit_at=NOW - 0.1, failure=failure(secondary=True))
    silent = [ready(name, last_seen=NOW - 0.2) for name in "ac"]
    assert decide(silent[0], echo, silent[1]).action is Action.KEEP
    heard = dataclasses.replace(echo, exit_at=NOW - 2)
    assert decide(ready("a"), heard, ready("c")).action is Action.FORM


def test_all_failed_waits_and_holds_nobody_to_blame_twice() -> None:
    failed = [ready(name, exit_at=NOW, failure=failure(), failed_in="1.1.1") for name in "abc"]
    decision = decide(*failed)
    assert decision.action is Action.HALT
    assert decision.failed == ("a", "b", "c")
    assert decision.counts
    assert decision.failure is not None


def test_lost_below_the_minimum_halts() -> None:
    view = live(ready("a"), ready("b", closed_at=NOW - 1), ready("c", closed_at=NOW - 1))
    policy = dataclasses.replace(view.policy, minimum=2)
    decision = decide_membership(dataclasses.replace(view, policy=policy), NOW)
    assert decision.action is Action.HALT
    assert "lost b, c: 1 of at least 2 workers are left" in decision.reason


@pytest.mark.parametrize("change", [{"leaving": True}, {"draining": True}], ids=str)
def test_planned_leave_asks_for_a_step_and_changes_after_it(change: dict[str, Any]) -> None:
    if change.pop("draining", False):
        base = live(ready("a"), ready("b"), ready("c"))
        assert base.expectation is not None
        expectation = dataclasses.replace(base.expectation, draining=("c",))
        view = dataclasses.replace(base, expectation=expectation)
    else:
        view = live(ready("a"), ready("b"), ready("c", **change))
    assert decide_membership(view, NOW).action is Action.ASK_STOP_STEP
    asked = dataclasses.replace(view, asked_at=NOW)
    assert decide_membership(asked, NOW).action is Action.KEEP
    steps = dict(zip("abc", (7, 8, 7), strict=True))
    promised = dataclasses.replace(
        asked,
        workers=tuple(
            dataclasses.replace(w, promise=steps[w.member.worker]) for w in asked.workers
        ),
    )
    decision = decide_membership(promised, NOW)
    assert decision.membership is not None
    assert names(decision.membership) == ["a", "b"]
    assert decision.membership.cause is Cause.LEFT
    assert decision.membership.after == 8, "the last step that a worker may have begun"


def test_every_promise_is_waited_for() -> None:
    workers = ready("a", promise=3), ready("b"), ready("c", leaving=True, promise=3)
    assert decide(*workers, asked_at=NOW).action is Action.KEEP


def test_who_does_not_promise_in_time_is_not_waited_for() -> None:
    asked_at = NOW - PROMISE_SECONDS
    decision = decide(
        ready("a", promise=3), ready("b"), ready("c", leaving=True, promise=3), asked_at=asked_at
    )
    assert decision.membership is not None
    assert decision.membership.after is None


def test_joiner_is_admitted_only_when_it_is_ready() -> None:
    members = [ready(name) for name in "abc"]
    assert decide(*members, worker("d", registered_at=NOW - 100)).action is Action.KEEP
    assert decide(*members, ready("d", ready_at=NOW)).action is Action.ASK_STOP_STEP


def test_joiners_are_waited_for_to_come_together() -> None:
    members = [ready(name) for name in "abc"]
    decision = decide(*members, ready("d", ready_at=NOW - 1), expected="a b c d e")
    assert (decision.action, decision.again_at) == (Action.KEEP, NOW + 2)
    assert (
        decide(*members, ready("d", ready_at=NOW - 3), expected="a b c d e").action
        is Action.ASK_STOP_STEP
    )


def test_reason_to_ask_that_goes_away_is_taken_back() -> None:
    assert decide(ready("a"), ready("b"), ready("c"), asked_at=NOW).action is Action.CANCEL_STOP


@pytest.mark.parametrize("end", ["done", "finished"])
def test_at_the_end_nothing_changes_any_more(end: str) -> None:
    members = [ready("a", **{end: True}), ready("b"), ready("c")]
    assert decide(*members, ready("d")).action is Action.KEEP
    assert decide(*members, ready("d"), asked_at=NOW).action is Action.CANCEL_STOP


def test_all_done() -> None:
    assert decide(*(ready(name, done=True) for name in "abc")).action is Action.COMPLETE


def test_resting_worker_is_no_joiner() -> None:
    members = [ready(name) for name in "abc"]
    decision = decide(*members, ready("d", rests_until=NOW + 4))
    assert (decision.action, decision.again_at) == (Action.KEEP, NOW + 4)
