"""The membership policy as tables: a view and a time in, one decision out."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from agent.membership.views import NOW, POLICY, failure, membership, names, running, view, worker
from ddpjob_agent.membership.policy import decide_membership
from ddpjob_agent.membership.state import Action, WorkerState
from ddpjob_protocol.messages.control import Expectation
from ddpjob_protocol.messages.membership import Cause, Member, MembershipId

# --- the first membership -----------------------------------------------------------------------


def test_nothing_starts_before_the_operator_has_spoken() -> None:
    decision = decide_membership(view(worker("a"), expectation=None), NOW)
    assert decision.action is Action.KEEP
    assert "operator" in decision.reason


def test_all_expected_are_here_so_it_starts_at_once_in_the_order_of_names() -> None:
    decision = decide_membership(view(worker("b", registered_at=NOW), worker("a")), NOW)
    assert decision.action is Action.FORM
    assert decision.membership is not None
    assert names(decision.membership) == ["a", "b"]
    assert decision.membership.cause is Cause.STARTED
    assert decision.membership.id == MembershipId(1, 1, 1)


@pytest.mark.parametrize(
    ("since", "newest", "again_at"),
    [
        pytest.param(NOW - 10, NOW - 10, NOW + 290, id="startup wait is not over"),
        pytest.param(NOW - 300, NOW - 1, NOW + 2, id="it is over, but one came a second ago"),
    ],
)
def test_the_first_start_waits_for_the_missing(
    since: float, newest: float, again_at: float
) -> None:
    decision = decide_membership(
        view(worker("a", registered_at=newest), expected="a b", expected_since=since), NOW
    )
    assert decision.action is Action.KEEP
    assert "waiting for b" in decision.reason
    assert decision.again_at == min(again_at, NOW + POLICY.heartbeat_deadline)


def test_after_startup_wait_and_quiet_it_starts_with_fewer() -> None:
    few = view(worker("a", registered_at=NOW - 4), expected="a b", expected_since=NOW - 301)
    assert decide_membership(few, NOW).action is Action.FORM


def test_below_the_minimum_it_never_starts() -> None:
    policy = dataclasses.replace(POLICY, minimum=2)
    few = view(worker("a"), expected="a", policy=policy, expected_since=0.0)
    decision = decide_membership(few, NOW)
    assert (decision.action, decision.reason) == (
        Action.KEEP, "1 of at least 2 workers are here",
    )  # fmt: skip


def test_no_other_group_stands_in_for_one_with_a_minimum_of_its_own() -> None:
    """A server and its trainers: the number of all workers does not help."""
    policy = dataclasses.replace(POLICY, minimum=2, minimums=(("ps-worker", 1), ("ps-b", 1)))
    server, *trainers = "ps-worker-000-1", "ps-b-000-1", "ps-b-001-1"
    everybody = " ".join([server, *trainers])
    few = view(*map(worker, trainers), expected=everybody, policy=policy, expected_since=0.0)
    waiting = decide_membership(few, NOW)
    assert waiting.action is Action.KEEP
    assert waiting.reason.startswith("0 of at least 1 worker of ps-worker is here")

    lost = worker(server, closed_at=NOW - 60)
    halted = decide_membership(
        running(membership(server, *trainers), lost, *map(worker, trainers), policy=policy), NOW
    )
    assert halted.action is Action.HALT
    assert halted.reason == f"lost {server}: 0 of at least 1 worker of ps-worker is left"

    gone = worker(trainers[1], closed_at=NOW - 60)
    smaller = decide_membership(
        running(membership(server, *trainers), *map(worker, [server, trainers[0]]), gone,
                policy=policy),
        NOW,
    )  # fmt: skip
    assert smaller.action is Action.FORM


def test_ten_workers_that_come_five_seconds_apart_give_one_membership() -> None:
    all_names = " ".join(f"w{i}" for i in range(10))
    formed = 0
    for count in range(1, 11):
        now = NOW + 5 * count
        here = [
            worker(f"w{i}", registered_at=NOW + 5 * (i + 1), last_seen=now) for i in range(count)
        ]
        decision = decide_membership(view(*here, expected=all_names, expected_since=NOW), now)
        formed += decision.action is Action.FORM
    assert formed == 1
    assert decision.membership is not None
    assert decision.membership.world_size == 10


# --- losses ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"closed_at": NOW - 0.5}, id="closed and not back in 0.5 s"),
        pytest.param({"last_seen": NOW - 10}, id="silent for 10 s"),
    ],
)
def test_a_lost_member_leads_to_a_membership_of_the_others(change: dict[str, float]) -> None:
    current = membership("a", "b", "c")
    decision = decide_membership(
        running(current, worker("a", **change), worker("b"), worker("c")), NOW
    )
    assert decision.action is Action.FORM
    assert names(decision.membership) == ["b", "c"]
    assert decision.membership is not None
    assert decision.membership.cause is Cause.LOST
    assert decision.membership.detail == "lost a"
    assert decision.membership.losses == 1


@pytest.mark.parametrize(
    ("change", "again_at"),
    [
        pytest.param({"closed_at": NOW - 0.4}, NOW + 0.1, id="closed a moment ago"),
        pytest.param({"last_seen": NOW - 7}, NOW + 3, id="throttled"),
    ],
)
def test_a_member_that_may_come_back_is_not_lost(change: dict[str, float], again_at: float) -> None:
    current = membership("a", "b")
    decision = decide_membership(running(current, worker("a", **change), worker("b")), NOW)
    assert decision.action is Action.KEEP
    assert decision.again_at == pytest.approx(again_at)


@pytest.mark.parametrize(
    ("change", "cause", "detail"),
    [
        pytest.param({"closed_at": NOW}, Cause.LOST, "lost b", id="and_its_connection_is_lost"),
        pytest.param({"leaving": True}, Cause.LEFT, "left b", id="and_it_says_goodbye"),
        pytest.param({"unexpected_at": NOW - 0.5}, Cause.LEFT, "left b", id="but_it_lives_on"),
    ],
)
def test_a_member_whose_pod_is_gone(change: dict[str, Any], cause: Cause, detail: str) -> None:
    current = membership("a", "b")
    gone = worker("b", **{"unexpected_at": NOW, **change})
    decision = decide_membership(running(current, worker("a"), gone, expected="a"), NOW)
    assert decision.membership is not None
    assert (decision.membership.cause, decision.membership.detail) == (cause, detail)


def test_a_member_whose_pod_is_gone_has_a_moment_to_say_goodbye() -> None:
    current, gone = membership("a", "b"), worker("b", unexpected_at=NOW)
    decision = decide_membership(running(current, worker("a"), gone, expected="a"), NOW)
    assert decision.action is Action.KEEP
    assert decision.again_at == pytest.approx(NOW + 2)
    later = decide_membership(running(current, worker("a"), gone, expected="a"), NOW + 2)
    assert later.membership is not None
    assert later.membership.cause is Cause.LOST


def test_two_that_go_together_are_one_change() -> None:
    current = membership("a", "b", "c")
    first, second = worker("a", closed_at=NOW - 0.5), worker("b", closed_at=NOW - 0.4)
    decision = decide_membership(running(current, first, second, worker("c")), NOW)
    assert decision.action is Action.KEEP
    assert decision.again_at == pytest.approx(NOW + 0.1)
    later = decide_membership(running(current, first, second, worker("c")), NOW + 0.1)
    assert names(later.membership) == ["c"]


def test_a_member_with_a_new_incarnation_is_another_worker() -> None:
    current = membership("a", "b")
    again = WorkerState(Member("a", "a-second", "127.0.0.1", 1), registered_at=NOW, last_seen=NOW)
    decision = decide_membership(running(current, again, worker("b")), NOW)
    assert decision.membership is not None
    assert decision.membership.cause is Cause.LOST
    assert names(decision.membership) == ["b", "a"]


def test_a_loss_takes_waiting_joiners_in_and_survivors_keep_their_order() -> None:
    current = membership("c", "b", "d")
    decision = decide_membership(
        running(current, worker("a"), worker("b"), worker("c"), worker("d", last_seen=0.0)), NOW
    )
    assert names(decision.membership) == ["c", "b", "a"]
    assert decision.membership is not None
    assert decision.membership.detail == "lost d; joined a"


def test_below_the_minimum_it_halts_and_resumes_as_lost_with_a_new_worker() -> None:
    policy = dataclasses.replace(POLICY, minimum=2)
    current = membership("a", "b")
    gone, here = worker("a", closed_at=NOW - 1), worker("b")
    halted = decide_membership(running(current, gone, here, policy=policy), NOW)
    assert halted.action is Action.HALT
    assert halted.lost == ("a",)
    waiting = view(gone, here, expected="b c", current=current, lost=halted.lost, policy=policy)
    assert decide_membership(waiting, NOW).action is Action.KEEP
    refilled = dataclasses.replace(waiting, workers=(here, worker("c", registered_at=NOW)))
    decision = decide_membership(refilled, NOW)
    assert decision.membership is not None
    assert (decision.membership.cause, decision.membership.detail) == (
        Cause.LOST, "lost a; joined c",
    )  # fmt: skip
    assert decision.membership.id.round == 2


def test_the_budget_of_losses_is_kept() -> None:
    policy = dataclasses.replace(POLICY, max_losses=0)
    current = membership("a", "b")
    lost = running(current, worker("a", closed_at=NOW - 1), worker("b"), policy=policy)
    decision = decide_membership(lost, NOW)
    assert decision.action is Action.FAIL


def test_a_draining_member_leaves_and_no_budget_is_touched() -> None:
    current = membership("a", "b")
    drained = running(current, worker("a"), worker("b"))
    drained = dataclasses.replace(drained, expectation=Expectation(("a", "b"), ("b",)))
    decision = decide_membership(drained, NOW)
    assert decision.membership is not None
    assert (decision.membership.cause, decision.membership.losses) == (Cause.LEFT, 0)


# --- exits ----------------------------------------------------------------------------------------


def test_all_done_is_complete_and_one_done_is_not() -> None:
    current = membership("a", "b")
    one = running(current, worker("a", done=True), worker("b"))
    assert decide_membership(one, NOW).action is Action.KEEP
    both = running(current, worker("a", done=True), worker("b", done=True))
    assert decide_membership(both, NOW).action is Action.COMPLETE


def test_a_member_lost_after_others_were_done_makes_all_run_again() -> None:
    current = membership("a", "b")
    decision = decide_membership(
        running(current, worker("a", done=True), worker("b", closed_at=NOW - 1)), NOW
    )
    assert names(decision.membership) == ["a"]


def test_an_exit_is_not_blamed_before_every_member_has_sent_a_message() -> None:
    current = membership("a", "b")
    bad = worker("a", exit_at=NOW - 2, failure=failure())
    silent = worker("b", last_seen=NOW - 1.6)
    assert decide_membership(running(current, bad, silent), NOW).action is Action.KEEP
    heard = worker("b", last_seen=NOW - 1.5)
    assert decide_membership(running(current, bad, heard), NOW).action is Action.BACKOFF


def test_an_exit_with_a_lost_member_is_the_loss_and_costs_no_budget() -> None:
    current = membership("a", "b")
    decision = decide_membership(
        running(
            current,
            worker("a", exit_at=NOW - 0.6, failure=failure()),
            worker("b", closed_at=NOW - 0.6),
        ),
        NOW,
    )
    assert decision.membership is not None
    assert (decision.membership.cause, decision.membership.failures) == (Cause.LOST, 0)


def test_the_first_to_fail_is_blamed_by_its_own_clock_and_echoes_never() -> None:
    current = membership("a", "b", "c")
    echo = failure(at=NOW - 9, summary="rank 0: Connection closed by peer", secondary=True)
    late = failure(at=NOW - 3, summary="rank 1: late")
    first = failure(at=NOW - 4, summary="rank 2: first")
    workers = [
        worker(name, exit_at=NOW - 2, failure=each)
        for name, each in zip("abc", (echo, late, first), strict=True)
    ]
    decision = decide_membership(running(current, *workers), NOW)
    assert decision.failure == dataclasses.replace(first, worker="c")


def test_a_failure_names_the_worker_of_its_process() -> None:
    """mpirun reports from the first worker that a process of another worker has failed."""
    row = worker("a", exit_at=NOW - 2, failure=failure(rank=1, worker="b"))
    decision = decide_membership(running(membership("a", "b"), row, worker("b")), NOW)
    assert decision.failure is not None
    assert (decision.failure.worker, decision.failure.rank) == ("b", 1)


def test_a_message_is_due_half_a_second_after_the_exit() -> None:
    bad = worker("a", exit_at=NOW, failure=failure())
    decision = decide_membership(running(membership("a", "b"), bad, worker("b")), NOW)
    assert (decision.awaited, decision.awaited_since) == (("a", "b"), NOW + 0.5)
    assert decision.again_at == NOW + 0.5, "then the service asks for one"


@pytest.mark.parametrize(
    ("ran", "row", "pause", "after"),
    [
        pytest.param(5.0, 0, 5.0, 1, id="a script that fails at its start"),
        pytest.param(5.0, 1, 10.0, 2, id="and again"),
        pytest.param(5.0, 2, 20.0, 3, id="and a third time"),
        pytest.param(30.0, 0, 0.0, 0, id="the first failure after health"),
        pytest.param(30.0, 2, 0.0, 0, id="health ends a row"),
    ],
)
def test_back_off_doubles_in_a_row(ran: float, row: int, pause: float, after: int) -> None:
    bad = worker("a", exit_at=NOW - 2, failure=failure())
    now_running = running(
        membership("a"), bad, formed_at=NOW - 2 - ran, failures=2, failures_in_a_row=row
    )
    decision = decide_membership(now_running, NOW)
    assert (decision.action, decision.again_at) == (Action.BACKOFF, NOW + pause)
    assert (decision.counts, decision.failures_in_a_row) == (True, after)
    assert decision.reason.endswith("now" if not pause else f"in {pause:.0f} s")


@pytest.mark.parametrize(
    ("failures", "allowed", "change", "reason"),
    [
        pytest.param(
            3, 3, {}, "rank 0: boom (failure 4, 3 restarts allowed)", id="budget is spent"
        ),
        pytest.param(1, 1, {}, "rank 0: boom (failure 2, 1 restart allowed)", id="budget of one"),
        pytest.param(0, 3, {"permanent": True}, "rank 0: boom", id="trying again cannot help"),
    ],
)
def test_the_job_fails(failures: int, allowed: int, change: dict[str, bool], reason: str) -> None:
    bad = worker("a", exit_at=NOW - 2, failure=failure(**change))
    policy = dataclasses.replace(POLICY, max_failures=allowed)
    view_now = running(membership("a"), bad, failures=failures, policy=policy)
    decision = decide_membership(view_now, NOW)
    assert (decision.action, decision.reason) == (Action.FAIL, reason)


def test_after_the_back_off_it_is_formed_as_failed() -> None:
    current = membership("a")
    halted = view(
        worker("a"), current=current, failures=1, root_failure=failure(), resume_at=NOW + 5
    )
    assert decide_membership(halted, NOW).again_at == NOW + 5
    later = dataclasses.replace(halted, workers=(worker("a", last_seen=NOW + 5),))
    decision = decide_membership(later, NOW + 5)
    assert decision.membership is not None
    assert (decision.membership.cause, decision.membership.failures) == (Cause.FAILED, 1)


# --- joins ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "joins"),
    [
        pytest.param({"formed_at": NOW - 299}, False, id="L0: joins are 300 s apart"),
        pytest.param({"formed_at": NOW - 300}, True, id="L0: 300 s are over"),
        pytest.param({"formed_at": 0.0, "snapshot_step": 10}, False, id="L1: no save since it came"),
        pytest.param(
            {"formed_at": NOW - 50, "snapshot_step": 10, "saved_at": NOW - 21.0}, False,
            id="L1: the save was before it came",
        ),
        pytest.param(
            {"formed_at": NOW - 50, "snapshot_step": 10, "saved_at": NOW - 19.0}, True,
            id="L1: saved since it came",
        ),
    ],
)  # fmt: skip
def test_a_joiner_under_auto(changes: dict[str, object], joins: bool) -> None:
    current = membership("a")
    joiner = worker("b", registered_at=NOW - 20)
    decision = decide_membership(running(current, worker("a"), joiner, **changes), NOW)
    assert (decision.action is Action.FORM) is joins
    if joins:
        assert decision.membership is not None
        assert decision.membership.cause is Cause.JOINED
    else:
        assert "b waits for" in decision.reason


def test_nobody_waits_longer_than_max_join_wait() -> None:
    joiner = worker("b", registered_at=NOW - 900)
    decision = decide_membership(
        running(membership("a"), worker("a"), joiner, snapshot_step=10, formed_at=NOW), NOW
    )
    assert decision.action is Action.FORM


@pytest.mark.parametrize(
    ("policy", "age", "joins"),
    [("Immediate", 0.0, True), ("Never", 1000.0, False)],
    ids=["immediate", "never"],
)
def test_the_other_join_policies(policy: str, age: float, joins: bool) -> None:
    chosen = dataclasses.replace(POLICY, join_policy=policy)
    joiner = worker("b", registered_at=NOW - age)
    decision = decide_membership(
        running(membership("a"), worker("a"), joiner, policy=chosen, formed_at=NOW), NOW
    )
    assert (decision.action is Action.FORM) is joins


def test_immediate_joiners_are_admitted_together() -> None:
    chosen = dataclasses.replace(POLICY, join_policy="Immediate")
    joiner = worker("b", registered_at=NOW - 1)
    waiting = running(membership("a"), worker("a"), joiner, expected="a b c", policy=chosen)
    assert decide_membership(waiting, NOW).again_at == NOW + 2


def test_nobody_joins_once_a_worker_is_done() -> None:
    current = membership("a", "b")
    decision = decide_membership(
        running(current, worker("a", done=True), worker("b"), worker("c"), snapshot_step=10,
                saved_at=NOW),
        NOW,
    )  # fmt: skip
    assert decision.action is Action.KEEP
