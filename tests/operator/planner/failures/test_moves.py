"""Workers that failed on a node that new pods avoid: they move, and the minimum trains meanwhile."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from ddpjob_operator.api.status import NodeFailures
from ddpjob_operator.planner.actions import CreateWorker, DeleteWorker
from ddpjob_operator.planner.observed import Worker
from ddpjob_operator.planner.planner import Plan
from ddpjob_protocol.messages.control import ServiceState
from support.builders import (
    NOW,
    make_job,
    make_membership,
    make_report,
    make_status,
    make_worker,
)
from support.planning import PENDING, decide, events_of, membership_of, told

A, B, C = (make_worker(index, node=f"n{index}") for index in range(3))
B2 = make_worker(1, 2, node="n9", kept_off=("n1",))
GPU = make_worker(0, group="gpu", node="n1")
UNPLACED: dict[str, Any] = {
    "unschedulable": "0/3 nodes are available", "unschedulable_since": NOW - timedelta(seconds=60),
}  # fmt: skip
Names = list[str]


def bad(node: str = "n1", *workers: Worker) -> NodeFailures:
    """A node that new pods avoid; processes of these workers failed there."""
    names = tuple(each.name for each in workers)
    return NodeFailures(node=node, count=2, at=NOW, workers=names)


def planned(
    workers: tuple[Worker, ...],
    *nodes: NodeFailures,
    members: tuple[Worker, ...],
    heard: tuple[Worker, ...] | None = None,
    state: ServiceState = ServiceState.RUNNING,
    **spec: Any,
) -> Plan:
    """The plan for a job whose members train; all its running workers have registered."""
    running = tuple(each for each in workers if each.phase is not PENDING)
    report = make_report(
        *(running if heard is None else heard), membership=make_membership(*members), state=state
    )
    status = make_status(membership=membership_of(*members), node_failures=nodes)
    fields = {"replicas": 2, "failurePolicy": {"avoidNodes": 2}, **spec}
    return decide(make_job(status=status, **fields), workers, report=report)


def outcome(plan: Plan) -> tuple[Names, Names, Names, Names]:
    """Workers that are expected, draining, created and deleted."""
    assert plan.expectation is not None
    return (
        list(plan.expectation.workers),
        list(plan.expectation.draining),
        [each.name for each in plan.actions if isinstance(each, CreateWorker)],
        [each.name for each in plan.actions if isinstance(each, DeleteWorker)],
    )


def names(*workers: Worker) -> Names:
    return [each.name for each in workers]


def test_a_worker_that_failed_moves_at_once_if_the_minimum_does_not_need_it() -> None:
    plan = planned((A, B), bad("n1", B), members=(A, B))
    assert outcome(plan) == (names(A, B2), names(B), names(B2), [])
    [new] = [each for each in plan.actions if isinstance(each, CreateWorker)]
    assert new.avoid == ("n1",)
    text = f"{B.name} failed on node n1, which new pods avoid; {B2.name} takes its place"
    assert ("WorkerReplaced", text, True) in events_of(plan)
    gone = planned((A, B), bad("n1", B), members=(A,))
    assert outcome(gone)[3] == names(B), "its pod ends after a membership without it has formed"


def test_a_worker_that_the_minimum_needs_stays_until_its_successor_has_registered() -> None:
    fixed: dict[str, Any] = {"minReplicas": 2, "members": (A, B)}
    first = planned((A, B), bad("n1", B), **fixed)
    assert outcome(first) == (names(A, B), [], names(B2), []), "the service expects one of the two"
    status, reason, text = told(first.status, "Resizing")
    assert (status, reason) == ("False", "PartlyPlaced")
    assert text == (
        f"2/2 placed; {B.name} failed on node n1, which new pods avoid; it stays until its"
        " successor has registered"
    )

    unplaced = make_worker(1, 2, phase=PENDING, **UNPLACED)
    full = planned((A, B, unplaced), bad("n1", B), **fixed)
    assert outcome(full) == (names(A, B), [], [], []), "no other node takes it: it trains on"
    assert "NodesAvoided" in [each.reason for each in full.status.warnings]
    assert f"{unplaced.name} is pending: 0/3 nodes" in told(full.status, "Resizing")[2]

    there = planned((A, B, B2), bad("n1", B), **fixed)
    assert outcome(there) == (names(A, B2), names(B), [], []), "both change in one membership"
    over = planned((A, B, B2), bad("n1", B), minReplicas=2, members=(A, B2))
    assert outcome(over) == (names(A, B2), names(B), [], names(B))


@pytest.mark.parametrize(
    ("worker", "node"),
    [
        pytest.param(B, bad("n1", A), id="another_one_failed"),
        pytest.param(B, bad("n0", B), id="on_another_node"),
        pytest.param(B, bad("n1", B).model_copy(update={"count": 1}), id="the_first_failure"),
        pytest.param(make_worker(1, node="n1", kept_off=("n1",)), bad("n1", B), id="pinned"),
    ],
)
def test_a_worker_stays_that_did_not_fail_there_or_could_not_move(
    worker: Worker, node: NodeFailures
) -> None:
    assert outcome(planned((A, worker), node, members=(A, B))) == (names(A, B), [], [], [])


def test_a_pod_that_has_not_started_on_such_a_node_is_replaced() -> None:
    waiting = make_worker(1, phase=PENDING, node="n1")
    plan = planned((A, waiting), bad("n1"), members=(A,), minReplicas=2)
    assert outcome(plan) == (names(A, B2), names(waiting), names(B2), names(waiting))
    text = f"{waiting.name} has not started on node n1, which new pods avoid; {B2.name} takes"
    assert any(each[1].startswith(text) for each in events_of(plan))
    own = make_worker(1, phase=PENDING, node="n1", kept_off=("n1",))
    assert outcome(planned((A, own), bad("n1"), members=(A,)))[2:] == ([], [])


def test_workers_move_one_after_the_other_if_the_minimum_allows_one() -> None:
    nodes = bad("n1", B), bad("n2", C)
    plan = planned((A, B, C), *nodes, members=(A, B, C), replicas=3, minReplicas=2)
    assert outcome(plan)[1] == names(B)
    assert outcome(plan)[2] == names(B2, make_worker(2, 2))
    half = planned((A, C, B2), *nodes, members=(A, C), replicas=3, minReplicas=2)
    assert outcome(half)[1] == names(C), "the second goes once the first has a successor"


def test_nobody_moves_while_the_service_has_just_restarted() -> None:
    plan = planned((A, B), bad("n1", B), members=(A, B), heard=())
    assert outcome(plan) == (names(A, B), [], names(B2), [])


def test_the_minimum_of_its_own_group_counts() -> None:
    groups = [{"name": "gpu", "replicas": 1, "minReplicas": 1}]
    plan = planned((A, B, GPU), bad("n1", GPU), members=(A, B, GPU), extraWorkerGroups=groups)
    assert outcome(plan)[:2] == (sorted(names(A, B, GPU)), [])


def test_a_successor_trains_beside_a_worker_that_is_held_if_the_job_is_short() -> None:
    """A third worker is lost: the job needs all three that have registered."""
    plan = planned(
        (A, B, B2), bad("n1", B), members=(A, B, C), replicas=3, minReplicas=3,
        state=ServiceState.WAITING,
    )  # fmt: skip
    third = make_worker(2, 2)
    assert outcome(plan) == (names(A, B, B2, third), [], names(third), [])


def test_a_job_that_shrinks_loses_the_worker_that_moves() -> None:
    plan = planned((A, B), bad("n0", A), members=(A, B), replicas=1)
    assert outcome(plan) == (names(B), names(A), [], [])
