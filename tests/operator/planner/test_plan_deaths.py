"""Workers that end by their own doing, one after the other: pause, reason, budget."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import pytest

from ddpjob_operator.api.status import NodeFailures
from ddpjob_operator.planner.actions import CreateRendezvous, CreateWorker, DeleteWorker
from ddpjob_operator.planner.observed import Worker
from ddpjob_operator.planner.planner import Plan
from ddpjob_protocol.messages.control import ProcessFailure, ServiceState
from ddpjob_protocol.messages.membership import Cause
from support.builders import (
    NOW,
    make_failure,
    make_failures,
    make_job,
    make_membership,
    make_report,
    make_status,
    make_worker,
)  # fmt: skip
from support.planning import FAILED, PENDING, W0, W1, create, decide, events_of, membership_of, told

EMPTY_DIR = 'Usage of EmptyDir volume "snapshots" exceeds the limit "1Gi".'
EPHEMERAL = "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi."
LOW = "The node was low on resource: memory."
OOM: dict[str, Any] = {"reason": "OOMKilled", "message": "exit code 137", "exit_code": 137}


def dead(index: int, incarnation: int, **fields: Any) -> Worker:
    return make_worker(index, incarnation, phase=FAILED, **fields)


def plan_after(worker: Worker, count: int, **fields: Any) -> Plan:
    """The plan for a job that trained with this worker, and with `count` more that ended."""
    predecessor = make_worker(worker.index, worker.incarnation - 1)
    status = make_status(
        membership=membership_of(W0, worker),
        worker_failures=(make_failures(predecessor, count=count),) if count else (),
    )
    report = make_report(W0, membership=make_membership(W0, n=2))
    return decide(make_job(2, status=status, **fields), (W0, worker), report=report)


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        pytest.param(OOM, "OutOfMemory", id="out_of_memory"),
        pytest.param(
            {"reason": "Evicted", "message": EMPTY_DIR}, "DiskLimitExceeded", id="empty_dir"
        ),
        pytest.param(
            {"reason": "Evicted", "message": EPHEMERAL}, "DiskLimitExceeded", id="ephemeral"
        ),
        pytest.param({"reason": "Error", "exit_code": 3}, "WorkersFail", id="exit_code"),
    ],
)
def test_a_worker_that_ends_again_by_its_own_doing_is_replaced_after_a_pause(
    end: dict[str, Any], reason: str
) -> None:
    first = plan_after(dead(1, 1, **end), 0)
    assert create(1, 2) in first.actions, "the first end may have been an accident"
    assert [(each.count, each.reason) for each in first.status.worker_failures] == [(1, reason)]
    [third] = [plan_after(dead(1, 3, **end), 2)]
    assert third.actions == ()
    assert third.status.replace_after == NOW + timedelta(seconds=10)
    assert told(third.status, "Stalled")[:2] == ("True", reason)
    assert reason in [each[0] for each in events_of(third)]


@pytest.mark.parametrize(
    "end",
    [
        pytest.param({"reason": "Evicted", "message": LOW, "disrupted": True}, id="node_pressure"),
        pytest.param({"exit_code": 137, "disrupted": True}, id="preempted"),
        pytest.param({"exit_code": 137, "deleting": True}, id="deleted"),
        pytest.param({"exit_code": 143}, id="stopped"),
        pytest.param({"exit_code": 137, "reason": "ContainerStatusUnknown"}, id="node_lost"),
        pytest.param({"exit_code": 255, "reason": "Unknown"}, id="node_started_again"),
        pytest.param({"reason": "UnexpectedAdmissionError"}, id="not_admitted"),
    ],
)
def test_an_end_that_is_not_the_workers_doing_has_no_pause(end: dict[str, Any]) -> None:
    worker = dead(1, 9, **end)
    planned = plan_after(worker, 0)
    assert create(1, 10) in planned.actions
    assert planned.status.worker_failures == ()


def test_each_slot_has_its_own_pause() -> None:
    three = make_worker(2, 1)
    status = make_status(
        membership=membership_of(W0, W1, three),
        worker_failures=(make_failures(make_worker(1, 4), count=3),),
    )
    report = make_report(W0, membership=make_membership(W0, n=2))
    workers = (W0, dead(1, 5, **OOM), dead(2, 1, **OOM))
    planned = decide(make_job(3, status=status), workers, report=report)
    assert set(planned.actions) == {create(2, 2), DeleteWorker(three.name)}
    assert [each.count for each in planned.status.worker_failures] == [4, 1]


@pytest.mark.parametrize(("count", "failed"), [(2, False), (3, True)])
def test_the_budget_of_the_application_ends_the_loop(count: int, *, failed: bool) -> None:
    planned = plan_after(dead(1, 9, **OOM), count)
    status, reason, text = told(planned.status, "Failed")
    assert (status == "True") is failed
    if failed:
        assert reason == "OutOfMemory"
        assert text.startswith("digits-worker-001-9 ended like 3 workers before it: OOMKilled")
        assert "raise the memory limit" in text


def test_a_pause_from_before_the_clock_was_set_back_is_over() -> None:
    worker = dead(1, 3, **OOM)
    for seconds, waits in ((300, True), (3600, False)):
        known = make_failures(worker, count=3, retry_at=NOW + timedelta(seconds=seconds))
        status = make_status(membership=membership_of(W0, worker), worker_failures=(known,))
        report = make_report(W0, membership=make_membership(W0, n=2))
        planned = decide(make_job(2, status=status), (W0, worker), report=report)
        assert (create(1, 4) in planned.actions) is not waits


def test_a_worker_that_never_joined_has_no_budget() -> None:
    status = make_status(worker_failures=(make_failures(make_worker(1, 19), count=19),))
    job = make_job(2, status=status)
    planned = decide(job, (W0, dead(1, 20, message="no python3")), report=make_report(W0))
    assert told(planned.status, "Failed")[0] == "False"
    assert planned.status.replace_after == NOW + timedelta(seconds=300)


def test_ten_good_minutes_end_the_count() -> None:
    status = make_status(
        membership=membership_of(W0, W1),
        worker_failures=(make_failures(dataclasses.replace(W1), count=3),),
    )
    job, workers, report = make_job(2, status=status), (W0, W1), make_report(W0, W1)
    for seconds, counted in ((599, 1), (600, 0)):
        now = NOW + timedelta(seconds=seconds)
        planned = decide(job, workers, report=report, now=now)
        assert len(planned.status.worker_failures) == counted


def test_the_last_words_are_kept_within_limits() -> None:
    words = "\n".join(f"line {n}" for n in range(1000))
    workers = [dead(n, 1, exit_code=1, message=words) for n in range(8)]
    job = make_job(8, maxReplicas=8, status=make_status(membership=membership_of(*workers)))
    failures = decide(job, tuple(workers), report=make_report(W0)).status.worker_failures
    assert len(failures) == 8
    tails = [each.tail for each in failures if each.tail]
    assert len(tails) == 5
    assert all(tail.endswith("line 999") and len(tail) <= 1000 for tail in tails)


# --- the rules and the window of the failure policy ----------------------------------------------

PREEMPTED: dict[str, Any] = {
    "exit_code": 137, "disrupted": True, "deleting": True, "reason": "PreemptionByScheduler",
}  # fmt: skip


def policy(*rules: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"failurePolicy": {"rules": list(rules), **more}}


def by_codes(action: str, *values: int, operator: str = "In") -> dict[str, Any]:
    return {"action": action, "onExitCodes": {"operator": operator, "values": list(values)}}


def by_reasons(action: str, *reasons: str) -> dict[str, Any]:
    return {"action": action, "onReasons": list(reasons)}


@pytest.mark.parametrize(
    ("rules", "end", "counted"),
    [
        pytest.param([], OOM, (1, 1), id="no_rule"),
        pytest.param([by_reasons("Ignore", "OutOfMemory")], OOM, (1, 0), id="ignored_by_reason"),
        pytest.param([by_codes("Ignore", 137)], OOM, (1, 0), id="ignored_by_code"),
        pytest.param([by_codes("Ignore", 1, operator="NotIn")], OOM, (1, 0), id="not_in"),
        pytest.param(
            [by_codes("Count", 137), by_reasons("Ignore", "OutOfMemory")], OOM, (1, 1), id="first"
        ),
        pytest.param([by_reasons("Ignore", "Evicted")], OOM, (1, 1), id="another_reason"),
        pytest.param([by_reasons("Count", "Preempted")], PREEMPTED, (1, 1), id="preemption_counts"),
        pytest.param([by_codes("Count", 137)], PREEMPTED, None, id="its_exit_code_says_nothing"),
        pytest.param([by_reasons("Count", "NodeLost")], {"reason": "NodeLost"}, (1, 1), id="node"),
        pytest.param(
            [by_reasons("FailJob", "NodeLost"), by_codes("FailJob", 137)],
            {"exit_code": 137, "deleting": True, "reason": "NodeLost"},
            None,
            id="a_planned_end_is_no_failure",
        ),
    ],
)
def test_rules_decide_which_ends_cost_the_budget(
    rules: list[dict[str, Any]], end: dict[str, Any], counted: tuple[int, int] | None
) -> None:
    planned = plan_after(dead(1, 1, **end), 0, **policy(*rules))
    found = [(each.count, each.spent) for each in planned.status.worker_failures]
    assert found == ([counted] if counted else [])
    assert told(planned.status, "Failed")[0] == "False"


@pytest.mark.parametrize(
    ("rule", "end", "reason"),
    [
        pytest.param(by_reasons("FailJob", "OutOfMemory"), OOM, "OutOfMemory", id="reason"),
        pytest.param(by_codes("FailJob", 3), {"exit_code": 3}, "WorkersFail", id="code"),
        pytest.param(by_reasons("FailJob", "Preempted"), PREEMPTED, "WorkersFail", id="preempted"),
    ],
)
def test_a_rule_fails_the_job_at_the_first_such_end(
    rule: dict[str, Any], end: dict[str, Any], reason: str
) -> None:
    planned = plan_after(dead(1, 1, **end), 0, **policy(rule))
    status, found, text = told(planned.status, "Failed")
    assert (status, found) == ("True", reason)
    assert "(failurePolicy.rules: FailJob)" in text


def test_ends_that_a_rule_ignores_have_pauses_and_no_limit() -> None:
    planned = plan_after(dead(1, 9, **OOM), 0, **policy(by_codes("Ignore", 137)))
    for incarnation in range(10, 20):
        failures = planned.status.worker_failures
        worker = dead(1, incarnation, **OOM)
        status = make_status(membership=membership_of(W0, worker), worker_failures=failures)
        job = make_job(2, status=status, **policy(by_codes("Ignore", 137)))
        report = make_report(W0, membership=make_membership(W0, n=2))
        planned = decide(job, (W0, worker), report=report)
        assert told(planned.status, "Failed")[0] == "False"
    assert planned.status.replace_after == NOW + timedelta(seconds=300)
    assert [(each.count, each.spent) for each in planned.status.worker_failures] == [(11, 0)]


@pytest.mark.parametrize(("minutes", "failed"), [(30, True), (61, False)])
def test_the_budget_counts_ends_within_the_window(minutes: int, *, failed: bool) -> None:
    """The first of three ends is `minutes` ago; two are allowed within an hour."""
    times = [NOW - timedelta(minutes=at) for at in (minutes, 20)]
    before = make_failures(
        make_worker(1, 8), count=2, spent=2, times=times, at=NOW - timedelta(minutes=20)
    )
    worker = dead(1, 9, **OOM)
    status = make_status(membership=membership_of(W0, worker), worker_failures=(before,))
    job = make_job(
        2, status=status, **policy(windowSeconds=3600, maxRestarts={"application": 2})
    )  # fmt: skip
    planned = decide(job, (W0, worker), report=make_report(W0, membership=make_membership(W0, n=2)))
    assert (told(planned.status, "Failed")[0] == "True") is failed
    [after] = planned.status.worker_failures
    assert (after.count, len(after.times)) == (1, 3), "a pause is for failures in a row only"


def test_the_times_of_reported_failures_are_kept_and_handed_to_the_next_service() -> None:
    age = [4000, 600, 30]
    seconds = tuple(int(NOW.timestamp()) - each for each in age)
    job = make_job(
        2, status=make_status(membership=membership_of(W0, W1)), **policy(windowSeconds=3600)
    )  # fmt: skip
    first = decide(job, (W0, W1), report=make_report(W0, W1, failures=3, failure_times=seconds))
    assert first.status.restarts.application == 3
    recent = first.status.restarts.recent
    assert [(NOW - each).total_seconds() for each in recent] == [600, 30]

    without = job.model_copy(update={"status": first.status})
    restarted = decide(without, (W0, W1), report=make_report(W0, W1, failures=0))
    assert restarted.status.restarts.recent == recent
    assert restarted.expectation is not None
    assert restarted.expectation.failure_times == seconds[1:]


# --- nodes that new pods avoid ---------------------------------------------------------------------


def on(node: str, index: int, incarnation: int = 1, **end: Any) -> Worker:
    return dead(index, incarnation, node=node, **(end or OOM))


def avoiding(
    workers: tuple[Worker, ...], *known: NodeFailures, most: int | None = 2, **policy: Any
) -> Plan:
    """The plan for a job that trained with these workers."""
    status = make_status(membership=membership_of(*workers), node_failures=known)
    spec = {"failurePolicy": {"avoidNodes": most, **policy}} if most else {}
    job = make_job(len(workers), status=status, **spec)
    return decide(job, workers, report=make_report(W0, membership=make_membership(W0, n=2)))


def bad(node: str, count: int, **fields: Any) -> NodeFailures:
    return NodeFailures(**{"node": node, "count": count, "at": NOW, **fields})


def created_avoiding(planned: Plan) -> set[tuple[str, ...]]:
    return {each.avoid for each in planned.actions if isinstance(each, CreateWorker)}


@pytest.mark.parametrize(
    ("workers", "known", "counts", "avoided"),
    [
        pytest.param((on("a", 1),), (), {"a": 1}, (), id="the_first"),
        pytest.param((on("a", 1), on("a", 2)), (), {"a": 2}, ("a",), id="two_at_once"),
        pytest.param((on("a", 1),), (bad("a", 1),), {"a": 2}, ("a",), id="the_second_later"),
        pytest.param((on("b", 1),), (bad("a", 1),), {"a": 1, "b": 1}, (), id="another_node"),
        pytest.param(
            (on("b", 1),), (bad("a", 2, avoided=True),), {"a": 2, "b": 1}, ("a",), id="it_is_kept"
        ),
        pytest.param((on("a", 1, **PREEMPTED),), (bad("a", 1),), {"a": 1}, (), id="preempted"),
        pytest.param((on("a", 1, exit_code=143),), (bad("a", 1),), {"a": 1}, (), id="stopped"),
    ],
)
def test_new_pods_avoid_a_node_on_which_workers_failed(
    workers: tuple[Worker, ...],
    known: tuple[NodeFailures, ...],
    counts: dict[str, int],
    avoided: tuple[str, ...],
) -> None:
    planned = avoiding((W0, *workers), *known)
    nodes = planned.status.node_failures
    assert {each.node: each.count for each in nodes} == counts
    assert tuple(each.node for each in nodes if each.avoided) == avoided
    assert created_avoiding(planned) == {avoided}


def test_a_worker_is_counted_once_for_its_node() -> None:
    worker = on("a", 1, 3)
    failures = (make_failures(worker, count=3, retry_at=NOW + timedelta(seconds=9)),)
    status = make_status(
        membership=membership_of(W0, worker),
        worker_failures=failures,
        node_failures=(bad("a", 1),),
    )
    job = make_job(2, status=status, failurePolicy={"avoidNodes": 2})
    planned = decide(job, (W0, worker), report=make_report(W0, membership=make_membership(W0, n=2)))
    assert [each.count for each in planned.status.node_failures] == [1]


FAILED_AT = int(NOW.timestamp()) - 30
HERE = tuple(make_worker(index, 1, node=node) for index, node in enumerate("ab"))


def of_process(index: int, at: int = FAILED_AT) -> ProcessFailure:
    return ProcessFailure(HERE[index].name, at)


def after_processes(
    *failures: ProcessFailure, known: tuple[NodeFailures, ...] = (), **policy: Any
) -> tuple[NodeFailures, ...]:
    """The failures of nodes of a job whose pods all live."""
    status = make_status(membership=membership_of(*HERE), node_failures=known)
    job = make_job(2, status=status, failurePolicy={"avoidNodes": 2, **policy})
    report = make_report(*HERE, process_failures=failures)
    return decide(job, HERE, report=report).status.node_failures


@pytest.mark.parametrize(
    ("failures", "counts", "avoided"),
    [
        pytest.param((of_process(1),), {"b": 1}, (), id="the_first"),
        pytest.param((of_process(1), of_process(1, FAILED_AT + 9)), {"b": 2}, ("b",), id="again"),
        pytest.param((of_process(1), of_process(0)), {"a": 1, "b": 1}, (), id="two_nodes"),
        pytest.param((ProcessFailure("digits-worker-7-1", 5),), {}, (), id="without_a_pod"),
    ],
)
def test_processes_that_fail_in_a_pod_that_lives_count_for_its_node(
    failures: tuple[ProcessFailure, ...], counts: dict[str, int], avoided: tuple[str, ...]
) -> None:
    nodes = after_processes(*failures)
    assert {each.node: each.count for each in nodes} == counts
    assert tuple(each.node for each in nodes if each.avoided) == avoided
    assert after_processes(*failures, known=nodes) == nodes, "after a restart of the operator"
    assert after_processes(known=nodes) == nodes, "after a restart of the service"


def test_a_failed_process_and_a_failed_pod_count_together() -> None:
    [known] = after_processes(of_process(1))
    pod = on("b", 1, 1)
    status = make_status(membership=membership_of(W0, pod), node_failures=(known,))
    job = make_job(2, status=status, failurePolicy={"avoidNodes": 2})
    report = make_report(
        W0, membership=make_membership(W0, n=2), process_failures=(of_process(1),)
    )  # fmt: skip
    [node] = decide(job, (W0, pod), report=report).status.node_failures
    assert (node.node, node.count, node.avoided) == ("b", 2, True)


def test_a_failed_process_is_forgotten_after_the_window() -> None:
    assert after_processes(of_process(1), windowSeconds=20) == ()
    assert len(after_processes(of_process(1), windowSeconds=40)) == 1


def test_the_event_of_a_failure_names_worker_rank_and_node() -> None:
    summary = f"rank 1 ({HERE[1].name}) ended with exit code 1"
    second = make_membership(*HERE, n=2, cause=Cause.FAILED, detail=summary)
    failure = make_failure(summary=summary, worker=HERE[1].name)
    job = make_job(2, status=make_status(membership=membership_of(*HERE)))
    planned = decide(job, HERE, report=make_report(*HERE, membership=second, failure=failure))
    [text] = [each.message for each in planned.events if each.reason == "Restarted"]
    assert text.endswith(f"{summary}; {HERE[1].name} is on node b")


def test_the_condition_of_a_failed_job_names_the_node() -> None:
    failure = make_failure(summary="rank 1: boom", worker=HERE[1].name)
    report = make_report(
        *HERE, state=ServiceState.FAILED, reason="rank 1: boom (failure 4)", failure=failure
    )
    job = make_job(2, status=make_status(membership=membership_of(*HERE)))
    message = told(decide(job, HERE, report=report).status, "Failed")[2]
    assert message == f"rank 1: boom (failure 4); {HERE[1].name} is on node b"


def test_no_node_is_avoided_unless_the_job_asks_for_it() -> None:
    planned = avoiding((W0, on("a", 1), on("a", 2)), bad("a", 9, avoided=True), most=None)
    assert planned.status.node_failures == ()
    assert created_avoiding(planned) == {()}


def test_nodes_are_few_and_forgotten_after_the_window() -> None:
    old = bad("old", 9, at=NOW - timedelta(seconds=61))
    assert avoiding((W0, W1), old, windowSeconds=60).status.node_failures == ()
    many = [bad(f"n{n}", 2) for n in range(50)]
    kept = avoiding((W0, on("a", 1)), *many).status.node_failures
    assert len(kept) == 50
    assert kept[-1].node == "a"


def test_the_rendezvous_pod_avoids_the_same_nodes() -> None:
    status = make_status(
        rendezvous_term=2, membership=membership_of(W0, W1), node_failures=(bad("a", 2),)
    )
    job = make_job(2, status=status, failurePolicy={"avoidNodes": 2})
    planned = decide(job, (W0, W1), rendezvous=None)
    assert CreateRendezvous("digits-rendezvous-2", 2, ("a",)) in planned.actions


def test_a_pending_worker_and_avoided_nodes_are_a_warning() -> None:
    waiting = make_worker(
        1,
        2,
        phase=PENDING,
        unschedulable="0/3 nodes are available",
        unschedulable_since=NOW - timedelta(seconds=10),
    )
    planned = avoiding((W0, waiting), bad("a", 2), bad("b", 1))
    [warning] = planned.status.warnings
    assert warning.reason == "NodesAvoided"
    assert "new pods avoid a, because of 2 failures of the job on each" in warning.message
    assert warning.reason in [each[0] for each in events_of(planned)]
    assert avoiding((W0, waiting), bad("b", 1)).status.warnings == ()
    assert avoiding((W0, W1), bad("a", 2)).status.warnings == ()
