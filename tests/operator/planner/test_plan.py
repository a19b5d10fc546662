"""Which workers there are to be, and who goes."""

from __future__ import annotations

from datetime import timedelta

import pytest

from ddpjob_operator.planner.actions import Action, CreateWorker, DeleteWorker
from ddpjob_operator.planner.observed import Phase, Worker
from ddpjob_protocol.messages.control import Expectation, Report, ServiceState
from support.builders import (
    NOW,
    make_failures,
    make_job,
    make_membership,
    make_report,
    make_round,
    make_worker,
)
from support.planning import (
    FAILED,
    PENDING,
    W0,
    W1,
    W2,
    W3,
    create,
    decide,
    expect,
    membership_of,
    told,
)

second_1 = make_worker(1, 2)


@pytest.mark.parametrize(
    ("workers", "report", "expectation", "actions"),
    [
        pytest.param((W0, W1), None, expect(W0, W1), (), id="all_there"),
        pytest.param((W0,), None, expect(W0, create(1)), (create(1),), id="one_never_made"),
        pytest.param(
            (W0,),
            make_report(W0, W1),
            expect(W0, create(1, 2)),
            (create(1, 2),),
            id="gone_and_known_from_the_report",
        ),
        pytest.param(
            (W0, make_worker(1, phase=FAILED)),
            make_report(W0, W1),
            expect(W0, create(1, 2)),
            (create(1, 2), DeleteWorker(W1.name)),
            id="ended",
        ),
        pytest.param(
            (W0, make_worker(1, phase=Phase.SUCCEEDED)),
            None,
            expect(W0, create(1, 2)),
            (create(1, 2), DeleteWorker(W1.name)),
            id="ended_well_before_the_job",
        ),
        pytest.param(
            (W0, make_worker(1, deleting=True)),
            None,
            expect(W0, create(1, 2), draining=(W1,)),
            (create(1, 2),),
            id="hangs_in_its_deletion",
        ),
        pytest.param(
            (W0, make_worker(1, deleting=True), make_worker(1, 2)),
            None,
            expect(W0, second_1, draining=(W1,)),
            (),
            id="replaced_already",
        ),
        pytest.param(
            (W0, make_worker(1, phase=PENDING)), None, expect(W0, W1), (), id="still_pending"
        ),
        pytest.param(
            (W0, make_worker(1, phase=PENDING, unschedulable="no GPU")),
            None,
            expect(W0),
            (),
            id="unschedulable_is_not_waited_for",
        ),
    ],
)
def test_workers_are_made_and_replaced(
    workers: tuple[Worker, ...],
    report: Report | None,
    expectation: Expectation,
    actions: tuple[Action, ...],
) -> None:
    planned = decide(workers=workers, report=report)
    assert (planned.expectation, planned.actions) == (expectation, actions)


def test_incarnation_is_one_more_than_status_and_old_rounds_know() -> None:
    old = make_round(make_membership(W0, make_worker(1, 6)))
    planned = decide(workers=(W0,), report=make_report(W0, memberships=(old,)))
    assert create(1, 7) in planned.actions
    planned = decide(workers=(W0,), membership=membership_of(W0, make_worker(1, 4)))
    assert create(1, 5) in planned.actions


def test_groups_are_made_alike() -> None:
    job = make_job(replicas=1, extraWorkerGroups=[{"name": "spot", "replicas": 1}])
    assert decide(job).actions == (create(0), create(0, group="spot"))


@pytest.mark.parametrize(
    ("replicas", "workers", "report", "expectation", "actions"),
    [
        pytest.param(
            2,
            (W0, W1, W2, W3),
            make_report(W0, W1, W2, W3),
            expect(W0, W1, draining=(W2, W3)),
            (),
            id="highest_index_first_and_kept_while_it_trains",
        ),
        pytest.param(
            2,
            (W0, W1, W2),
            make_report(W0, W1),
            expect(W0, W1, draining=(W2,)),
            (DeleteWorker(W2.name),),
            id="deleted_when_the_others_train_without_it",
        ),
        pytest.param(
            2,
            (W0, W1, W2),
            None,
            expect(W0, W1, draining=(W2,)),
            (),
            id="kept_while_nothing_is_known",
        ),
        pytest.param(
            2,
            (W0, make_worker(1, phase=PENDING), W2),
            make_report(W0, W2),
            expect(W0, W2, draining=(W1,)),
            (DeleteWorker(W1.name),),
            id="pending_before_running",
        ),
        pytest.param(
            1,
            (W0, make_worker(1, phase=PENDING), make_worker(2, phase=PENDING)),
            None,
            expect(W0, draining=(W1, W2)),
            (DeleteWorker(W1.name), DeleteWorker(W2.name)),
            id="pending_ones_never_ran",
        ),
        pytest.param(
            2,
            (W0, W1, W2),
            make_report(W0, W1, W2, state=ServiceState.WAITING),
            expect(W0, W1, draining=(W2,)),
            (DeleteWorker(W2.name),),
            id="deleted_when_nothing_runs",
        ),
    ],
)
def test_workers_drain(
    replicas: int,
    workers: tuple[Worker, ...],
    report: Report | None,
    expectation: Expectation,
    actions: tuple[Action, ...],
) -> None:
    planned = decide(make_job(replicas), workers, report=report)
    assert (planned.expectation, planned.actions) == (expectation, actions)


def test_a_group_that_is_no_more_drains() -> None:
    other = make_worker(0, group="spot")
    planned = decide(make_job(1), (W0, other), report=make_report(W0))
    assert (planned.expectation, planned.actions) == (
        expect(W0, draining=(other,)),
        (DeleteWorker(other.name),),
    )


def test_a_free_index_below_a_running_one_is_used_first() -> None:
    planned = decide(make_job(3), (W0, W2), report=make_report(W0, W2))
    assert create(1) in planned.actions


BROKEN = make_worker(1, 3, phase=FAILED, message="image has no python3")
BEFORE = (make_failures(make_worker(1, 2), count=2),)


def test_a_worker_that_ends_before_it_joins_is_replaced_after_a_pause() -> None:
    planned = decide(workers=(W0, BROKEN), report=make_report(W0), worker_failures=BEFORE)
    assert (planned.expectation, planned.actions) == (expect(W0), ())
    assert planned.status.replace_after == NOW + timedelta(seconds=10)
    assert planned.requeue_after == 10
    text = "digits-worker-001-3 ended like 2 workers before it: image has no python3; "
    assert told(planned.status, "Stalled") == (
        "True",
        "WorkersFail",
        text + "it is replaced at 03:04:15 UTC",
    )


@pytest.mark.parametrize(
    ("seconds", "created"), [pytest.param(9, False, id="early"), pytest.param(10, True, id="due")]
)
def test_the_pause_is_kept_in_status(seconds: int, created: bool) -> None:
    due, now = NOW + timedelta(seconds=10), NOW + timedelta(seconds=seconds)
    known = (make_failures(BROKEN, count=3, retry_at=due),)
    planned = decide(workers=(W0, BROKEN), report=make_report(W0), now=now, worker_failures=known)
    assert (create(1, 4) in planned.actions) is created
    assert (DeleteWorker(BROKEN.name) in planned.actions) is created
    assert planned.status.replace_after == (None if created else due)


@pytest.mark.parametrize(
    "worker",
    [
        pytest.param(make_worker(1, 1, phase=FAILED), id="the_first_at_its_index"),
        pytest.param(make_worker(1, 3, phase=FAILED, deleting=True), id="being_deleted_by_others"),
    ],
)
def test_a_worker_is_replaced_at_once(worker: Worker) -> None:
    job = make_job(failurePolicy={"backoffSeconds": 0}) if worker.deleting else make_job()
    planned = decide(job, (W0, worker), report=make_report(W0))
    assert create(1, worker.incarnation + 1) in planned.actions


def test_the_largest_workers_are_made_first() -> None:
    """A small one may otherwise take the node that only a large one fits on."""
    large = {"name": "large", "replicas": 2, "gpusPerWorker": 4}
    job = make_job(replicas=1, gpusPerWorker=1, extraWorkerGroups=[large])
    made = [action for action in decide(job).actions if isinstance(action, CreateWorker)]
    assert [action.group for action in made] == ["large", "large", "worker"]
