from __future__ import annotations

import dataclasses
from datetime import datetime, timedelta
from typing import Any

import pytest

from builders import (
    NOW,
    make_failure,
    make_job,
    make_membership,
    make_report,
    make_round,
    make_status,
    make_worker,
)
from ddpjob_agent.contract import Cause, Expectation, Report, State
from ddpjob_operator.api import DDPJob
from ddpjob_operator.conditions import find
from ddpjob_operator.observed import Observed, Phase, Rendezvous, Worker
from ddpjob_operator.plan import (
    CreateRendezvous,
    CreateWorker,
    DeleteRendezvous,
    DeleteWorker,
    Expect,
    Plan,
    plan,
)
from ddpjob_operator.status import DDPJobStatus, MembershipStatus, RestartsStatus

UP = Rendezvous(epoch=1, ready=True)
W0, W1, W2, W3 = (make_worker(index) for index in range(4))
PENDING = Phase.PENDING
FAILED = Phase.FAILED


def decide(
    job: DDPJob | None = None,
    workers: tuple[Worker, ...] = (),
    rendezvous: Rendezvous | None = UP,
    report: Report | None = None,
    now: datetime = NOW,
    **status: Any,
) -> Plan:
    """The plan for a job with this status, whose service is up unless told otherwise."""
    job = job or make_job()
    if job.status == DDPJobStatus():
        job = job.model_copy(update={"status": make_status(**status)})
    return plan(Observed(job, workers, rendezvous, report), now)


def told(status: DDPJobStatus, type_: str) -> tuple[str, str, str]:
    """Status, reason and message of a condition."""
    condition = find(status.conditions, type_)
    assert condition is not None
    return condition.status, condition.reason, condition.message


def create(index: int, incarnation: int = 1, group: str = "worker") -> CreateWorker:
    """The action that creates this worker."""
    name = make_worker(index, incarnation, group).name
    return CreateWorker(name, group, index, incarnation)


def expect(*workers: Worker | CreateWorker, draining: tuple[Worker, ...] = ()) -> Expect:
    """The action that announces these workers."""
    names = tuple(worker.name for worker in workers)
    gone = tuple(worker.name for worker in draining)
    return Expect(Expectation(names, gone, make_job().spec.policy()))


def membership_of(*workers: Worker, id_: str = "1.1.1") -> MembershipStatus:
    """What status says of them."""
    return MembershipStatus(
        id=id_,
        workers=tuple(worker.name for worker in workers),
        world_size=len(workers),
        since=NOW,
        cause="started",
    )


# --- the start, and the rendezvous service -----------------------------------------------------------


def test_first_pass_only_writes_the_epoch() -> None:
    planned = plan(Observed(make_job()), NOW)
    assert planned.actions == ()
    assert (planned.status.rendezvous_epoch, planned.status.start_time) == (1, NOW)
    assert planned.requeue_after == 0


def test_second_pass_creates_the_service_and_all_workers_at_once() -> None:
    planned = decide(rendezvous=None, rendezvous_observed=0)
    service = CreateRendezvous("digits-rendezvous-1", 1)
    assert planned.actions == (service, create(0), create(1))


@pytest.mark.parametrize(
    ("rendezvous", "observed", "epochs", "actions"),
    [
        pytest.param(None, 0, (1, 0), (CreateRendezvous("digits-rendezvous-1", 1),), id="to_come"),
        pytest.param(Rendezvous(1), 0, (1, 1), (), id="seen_first"),
        pytest.param(UP, 0, (1, 1), (), id="told_nothing_before_it_is_recorded"),
        pytest.param(Rendezvous(1), 1, (1, 1), (), id="not_ready"),
        pytest.param(UP, 1, (1, 1), (expect(W0, W1),), id="ready"),
        pytest.param(None, 1, (2, 1), (), id="gone"),
        pytest.param(Rendezvous(3, ready=True), 1, (3, 3), (), id="ahead_of_the_status"),
    ],
)
def test_epoch_is_written_before_the_service_is_created(
    rendezvous: Rendezvous | None,
    observed: int,
    epochs: tuple[int, int],
    actions: tuple[object, ...],
) -> None:
    planned = decide(workers=(W0, W1), rendezvous=rendezvous, rendezvous_observed=observed)
    assert (planned.status.rendezvous_epoch, planned.status.rendezvous_observed) == epochs
    assert planned.actions == actions


def test_a_service_of_an_older_epoch_is_replaced() -> None:
    planned = decide(workers=(W0, W1), rendezvous_epoch=2, report=make_report(W0, W1))
    service = CreateRendezvous("digits-rendezvous-2", 2)
    assert planned.actions == (DeleteRendezvous(1), service)
    assert planned.status.membership is None


# --- which workers there are to be -------------------------------------------------------------------

second_1 = make_worker(1, 2)


@pytest.mark.parametrize(
    ("workers", "report", "actions"),
    [
        pytest.param((W0, W1), None, (expect(W0, W1),), id="all_there"),
        pytest.param((W0,), None, (expect(W0, create(1)), create(1)), id="one_never_made"),
        pytest.param(
            (W0,),
            make_report(W0, W1),
            (expect(W0, create(1, 2)), create(1, 2)),
            id="gone_and_known_from_the_report",
        ),
        pytest.param(
            (W0, make_worker(1, phase=FAILED)),
            make_report(W0, W1),
            (expect(W0, create(1, 2)), create(1, 2), DeleteWorker(W1.name)),
            id="ended",
        ),
        pytest.param(
            (W0, make_worker(1, phase=Phase.SUCCEEDED)),
            None,
            (expect(W0, create(1, 2)), create(1, 2), DeleteWorker(W1.name)),
            id="ended_well_before_the_job",
        ),
        pytest.param(
            (W0, make_worker(1, deleting=True)),
            None,
            (expect(W0, create(1, 2), draining=(W1,)), create(1, 2)),
            id="hangs_in_its_deletion",
        ),
        pytest.param(
            (W0, make_worker(1, deleting=True), make_worker(1, 2)),
            None,
            (expect(W0, second_1, draining=(W1,)),),
            id="replaced_already",
        ),
        pytest.param(
            (W0, make_worker(1, phase=PENDING)), None, (expect(W0, W1),), id="still_pending"
        ),
        pytest.param(
            (W0, make_worker(1, phase=PENDING, unschedulable="no GPU")),
            None,
            (expect(W0),),
            id="unschedulable_is_not_waited_for",
        ),
    ],
)
def test_workers_are_made_and_replaced(
    workers: tuple[Worker, ...], report: Report | None, actions: tuple[object, ...]
) -> None:
    assert decide(workers=workers, report=report).actions == actions


def test_incarnation_is_one_more_than_status_and_old_rounds_know() -> None:
    old = make_round(make_membership(W0, make_worker(1, 6)))
    planned = decide(workers=(W0,), report=make_report(W0, rounds=(old,)))
    assert create(1, 7) in planned.actions
    planned = decide(workers=(W0,), membership=membership_of(W0, make_worker(1, 4)))
    assert create(1, 5) in planned.actions


def test_groups_are_made_alike() -> None:
    job = make_job(replicas=1, extraWorkerGroups=[{"name": "spot", "replicas": 1}])
    assert decide(job).actions[1:] == (create(0), create(0, group="spot"))


@pytest.mark.parametrize(
    ("replicas", "workers", "report", "actions"),
    [
        pytest.param(
            2,
            (W0, W1, W2, W3),
            make_report(W0, W1, W2, W3),
            (expect(W0, W1, draining=(W2, W3)),),
            id="highest_index_first_and_kept_while_it_trains",
        ),
        pytest.param(
            2,
            (W0, W1, W2),
            make_report(W0, W1),
            (expect(W0, W1, draining=(W2,)), DeleteWorker(W2.name)),
            id="deleted_when_the_others_train_without_it",
        ),
        pytest.param(
            2,
            (W0, W1, W2),
            None,
            (expect(W0, W1, draining=(W2,)),),
            id="kept_while_nothing_is_known",
        ),
        pytest.param(
            2,
            (W0, make_worker(1, phase=PENDING), W2),
            make_report(W0, W2),
            (expect(W0, W2, draining=(W1,)), DeleteWorker(W1.name)),
            id="pending_before_running",
        ),
        pytest.param(
            1,
            (W0, make_worker(1, phase=PENDING), make_worker(2, phase=PENDING)),
            None,
            (expect(W0, draining=(W1, W2)), DeleteWorker(W1.name), DeleteWorker(W2.name)),
            id="pending_ones_never_ran",
        ),
        pytest.param(
            2,
            (W0, W1, W2),
            make_report(W0, W1, W2, state=State.WAITING),
            (expect(W0, W1, draining=(W2,)), DeleteWorker(W2.name)),
            id="deleted_when_nothing_runs",
        ),
    ],
)
def test_workers_drain(
    replicas: int, workers: tuple[Worker, ...], report: Report | None, actions: tuple[object, ...]
) -> None:
    assert decide(make_job(replicas), workers, report=report).actions == actions


def test_a_group_that_is_no_more_drains() -> None:
    other = make_worker(0, group="spot")
    planned = decide(make_job(1), (W0, other), report=make_report(W0))
    assert planned.actions == (expect(W0, draining=(other,)), DeleteWorker(other.name))


def test_a_free_index_below_a_running_one_is_used_first() -> None:
    planned = decide(make_job(3), (W0, W2), report=make_report(W0, W2))
    assert create(1) in planned.actions


BROKEN = make_worker(1, 3, phase=FAILED, message="image has no python3")


def test_a_worker_that_ends_before_it_joins_is_replaced_after_a_pause() -> None:
    planned = decide(workers=(W0, BROKEN), report=make_report(W0))
    assert planned.actions == (expect(W0),)
    assert planned.status.replace_after == NOW + timedelta(seconds=10)
    assert planned.requeue_after == 10
    text = "digits-worker-001-3 ended before it joined: image has no python3; "
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
    planned = decide(workers=(W0, BROKEN), report=make_report(W0), now=now, replace_after=due)
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


# --- the end ---------------------------------------------------------------------------------------

FAILURE = make_failure(traceback="Traceback (most recent call last):\n  ...\nValueError: bad")
LONG = make_failure(traceback="\n".join(f"line {i}" for i in range(100)))
SUSPENDED = make_job(suspend=True)


@pytest.mark.parametrize(
    ("report", "type_", "reason", "message"),
    [
        pytest.param(
            make_report(W0, W1, state=State.COMPLETE, reason="every worker ended with exit code 0"),
            "Complete",
            "Completed",
            "every worker ended with exit code 0",
            id="complete",
        ),
        pytest.param(
            make_report(
                W0, W1, state=State.FAILED, reason=f"{FAILURE.summary} (failure 4)", failure=FAILURE
            ),
            "Failed",
            "ApplicationFailed",
            "rank 1 failed: ValueError: bad (failure 4)\nTraceback of rank 1:\n"
            "Traceback (most recent call last):\n  ...\nValueError: bad",
            id="application",
        ),
        pytest.param(
            make_report(W0, state=State.FAILED, reason="gave up", failure=LONG),
            "Failed",
            "ApplicationFailed",
            "gave up\nrank 1 failed: ValueError: bad\nTraceback of rank 1:\n...\n"
            + "\n".join(f"line {i}" for i in range(80, 100)),
            id="only_the_tail_of_a_traceback",
        ),
        pytest.param(
            make_report(
                W0,
                state=State.FAILED,
                reason="torchrun: not found",
                failure=make_failure(summary="torchrun: not found", permanent=True),
            ),
            "Failed",
            "CommandCannotStart",
            "torchrun: not found",
            id="command",
        ),
        pytest.param(
            make_report(W0, state=State.FAILED, reason="lost a: more than 2 restarts"),
            "Failed",
            "TooManyLosses",
            "lost a: more than 2 restarts",
            id="losses",
        ),
    ],
)
def test_the_end_is_written_before_anything_is_deleted(
    report: Report, type_: str, reason: str, message: str
) -> None:
    planned = decide(workers=(W0, W1), report=report)
    assert planned.actions == ()
    assert told(planned.status, type_) == ("True", reason, message)
    assert (planned.status.state, planned.status.completion_time) == (type_, NOW)
    assert [each.reason for each in planned.events] == ["Started", type_.replace("ete", "eted")]
    assert planned.requeue_after == 0


@pytest.mark.parametrize(
    "observed",
    [
        pytest.param({}, id="nothing_left"),
        pytest.param({"report": make_report(W0, W1)}, id="a_late_report"),
        pytest.param({"job": make_job(5, generation=2)}, id="resized"),
        pytest.param({"job": SUSPENDED}, id="suspended"),
    ],
)
def test_finished_stays_finished(observed: dict[str, Any]) -> None:
    end = decide(report=make_report(W0, W1, state=State.COMPLETE, reason="done")).status
    job = observed.pop("job", make_job()).model_copy(update={"status": end})
    later = NOW + timedelta(days=1)
    done = make_worker(1, phase=Phase.SUCCEEDED)
    planned = plan(Observed(job, (W0, done), UP, **observed), later)
    assert planned.status.state == "Complete"
    assert planned.status.conditions == end.conditions
    assert planned.actions == (DeleteWorker(W0.name), DeleteWorker(W1.name), DeleteRendezvous(1))
    assert (planned.events, planned.requeue_after) == ((), None)


def test_completion_is_seen_from_the_workers_when_the_service_is_gone() -> None:
    ended = tuple(make_worker(index, phase=Phase.SUCCEEDED) for index in range(2))
    planned = decide(workers=ended, rendezvous=None, membership=membership_of(*ended))
    assert planned.status.state == "Complete"


@pytest.mark.parametrize(
    ("seconds", "state", "requeue"),
    [
        pytest.param(0, "Running", 60, id="in_time"),
        pytest.param(59, "Running", 1, id="last_second"),
        pytest.param(60, "Failed", 0, id="too_long"),
    ],
)
def test_deadline(seconds: int, state: str, requeue: float) -> None:
    now = NOW + timedelta(seconds=seconds)
    job = make_job(activeDeadlineSeconds=60)
    planned = decide(job, (W0, W1), report=make_report(W0, W1), now=now)
    assert (planned.status.state, planned.requeue_after) == (state, requeue)
    if state == "Failed":
        message = "the job ran for longer than activeDeadlineSeconds (60)"
        assert told(planned.status, "Failed") == ("True", "DeadlineExceeded", message)


def test_suspension_deletes_everything_and_clears_the_clock() -> None:
    planned = decide(
        SUSPENDED,
        (W0, W1),
        report=make_report(W0, W1),
        membership=membership_of(W0, W1),
        restarts=RestartsStatus(application=2),
    )
    assert planned.actions == (DeleteWorker(W0.name), DeleteWorker(W1.name), DeleteRendezvous(1))
    assert (planned.status.state, planned.status.start_time) == ("Suspended", None)
    assert (planned.status.membership, planned.status.restarts) == (None, RestartsStatus())
    assert [each.reason for each in planned.events] == ["Suspended"]


def test_a_resumed_job_gets_a_new_epoch_and_a_new_start() -> None:
    paused = decide(SUSPENDED).status
    later = NOW + timedelta(hours=1)
    planned = plan(Observed(make_job(status=paused)), later)
    assert (planned.status.rendezvous_epoch, planned.status.start_time) == (2, later)
    assert told(planned.status, "Suspended")[0] == "False"


def test_completion_wins_over_suspension() -> None:
    report = make_report(W0, W1, state=State.COMPLETE, reason="done")
    assert decide(SUSPENDED, (W0, W1), report=report).status.state == "Complete"


def test_a_job_that_is_being_deleted_is_left_alone() -> None:
    job = make_job(status=make_status())
    metadata = job.metadata.model_copy(update={"deletion_timestamp": NOW})
    planned = plan(Observed(job.model_copy(update={"metadata": metadata})), NOW)
    assert planned == Plan((), job.status)


# --- what is told ------------------------------------------------------------------------------------

stuck = make_worker(1, phase=PENDING, unschedulable="0/3 nodes have a free GPU")


@pytest.mark.parametrize(
    ("replicas", "workers", "report", "condition", "expected"),
    [
        pytest.param(
            2,
            (W0, W1),
            make_report(W0, W1),
            "Running",
            ("True", "Training", "2 workers with 2 processes"),
            id="running",
        ),
        pytest.param(
            2,
            (W0, W1),
            make_report(reason="1 of at least 2 workers are here"),
            "Running",
            ("False", "Waiting", "1 of at least 2 workers are here"),
            id="waiting",
        ),
        pytest.param(
            2,
            (W0, W1),
            None,
            "Running",
            ("False", "RendezvousNotReady", "waiting for the rendezvous service"),
            id="no_service_yet",
        ),
        pytest.param(
            2,
            (W0, W1),
            make_report(W0, W1),
            "Resizing",
            ("False", "AtSize", "2/2 placed"),
            id="at_size",
        ),
        pytest.param(
            2,
            (W0, stuck),
            make_report(W0),
            "Resizing",
            (
                "False",
                "PartlyPlaced",
                "1/2 placed; digits-worker-001-1 is pending: 0/3 nodes have a free GPU",
            ),
            id="pending_workers_are_normal",
        ),
        pytest.param(
            2,
            (W0, W1),
            make_report(W0, reason="running; digits-worker-001-1 waits for the next snapshot"),
            "Resizing",
            ("True", "Joining", "running; digits-worker-001-1 waits for the next snapshot"),
            id="joining",
        ),
        pytest.param(
            1,
            (W0, W1),
            make_report(W0, W1),
            "Resizing",
            ("True", "Draining", "digits-worker-001-1 must leave"),
            id="draining",
        ),
        pytest.param(
            2,
            (W0, stuck),
            make_report(W0),
            "Stalled",
            ("False", "NotStalled", ""),
            id="not_stalled_while_it_runs",
        ),
    ],
)
def test_conditions(
    replicas: int,
    workers: tuple[Worker, ...],
    report: Report | None,
    condition: str,
    expected: tuple[str, str, str],
) -> None:
    planned = decide(make_job(replicas, generation=7), workers, report=report)
    assert told(planned.status, condition) == expected
    assert {each.observed_generation for each in planned.status.conditions} == {7}


def test_stalled_when_too_few_can_be_placed() -> None:
    planned = decide(make_job(2, minReplicas=2), (W0, stuck), report=make_report())
    assert told(planned.status, "Stalled") == (
        "True",
        "TooFewPlaced",
        (
            "1/2 placed; digits-worker-001-1 is pending: 0/3 nodes have a free GPU; "
            "at least 2 must be placed"
        ),
    )


def test_running_is_unknown_while_a_lost_service_is_replaced() -> None:
    planned = decide(workers=(W0, W1), rendezvous=None, membership=membership_of(W0, W1))
    assert planned.status.state == "Unknown"
    assert planned.status.membership == membership_of(W0, W1)
    assert planned.actions == ()


def test_status_tells_what_the_service_reports() -> None:
    report = make_report(
        W0, W1, failures=1, losses=2, step=40, total_steps=900, metrics={"loss": 0.5}
    )
    status = decide(workers=(W0, W1), report=dataclasses.replace(report, snapshot_step=30)).status
    written = status.to_json()
    assert written["restarts"] == {"application": 1, "infrastructure": 2}
    assert written["progress"] == {"step": 40, "totalSteps": 900, "metrics": {"loss": 0.5}}
    assert written["snapshot"] == {"step": 30}
    assert written["groups"] == [{"name": "worker", "replicas": 2, "placed": 2, "ready": 2}]
    assert written["membership"] == {
        "id": "1.1.1",
        "workers": [W0.name, W1.name],
        "worldSize": 2,
        "since": "2026-01-02T03:04:05Z",
        "cause": "started",
    }
    assert (written["replicas"], written["selector"]) == (
        2,
        "ddpjob.io/job=digits,ddpjob.io/group=worker",
    )


def test_a_resize_is_not_a_restart() -> None:
    grown = make_membership(W0, W1, n=2, cause=Cause.JOINED)
    report = make_report(W0, W1, membership=grown)
    status = decide(workers=(W0, W1), report=report, membership=membership_of(W0)).status
    assert status.restarts == RestartsStatus()
    assert status.membership is not None
    assert (status.membership.id, status.membership.cause) == ("1.1.2", "joined")


def test_a_report_of_an_overtaken_membership_is_not_believed() -> None:
    late = make_report(W0, W1, state=State.COMPLETE, step=99)
    now = membership_of(W0, W1, id_="2.1.2")
    planned = decide(workers=(W0, W1), report=late, membership=now)
    assert (planned.status.membership, planned.status.progress) == (now, None)
    assert planned.status.completion_time is None


def test_events_tell_every_membership_since_the_last_one_once() -> None:
    lost = make_membership(W0, n=2, cause=Cause.LOST, detail="lost digits-worker-001-1")
    joined = make_membership(W0, W1, n=3, cause=Cause.JOINED, detail="joined digits-worker-001-2")
    rounds = tuple(make_round(each) for each in (make_membership(W0, W1), lost, joined))
    report = make_report(W0, W1, membership=joined, rounds=rounds)
    planned = decide(workers=(W0, W1), report=report, membership=membership_of(W0, W1))
    assert [(each.reason, each.message, each.warning) for each in planned.events] == [
        (
            "WorkerLost",
            "membership 1.1.2 with 1 workers, 1 processes: lost digits-worker-001-1",
            True,
        ),
        (
            "WorkerJoined",
            "membership 1.1.3 with 2 workers, 2 processes: joined digits-worker-001-2",
            False,
        ),
    ]
    again = plan(Observed(make_job(status=planned.status), (W0, W1), UP, report), NOW)
    assert again.events == ()


@pytest.mark.parametrize(
    ("left", "message"),
    [
        pytest.param(
            make_worker(1, phase=FAILED, message="OOMKilled"),
            "digits-worker-001-1 has ended (OOMKilled); digits-worker-001-2 takes its place",
            id="ended",
        ),
        pytest.param(
            make_worker(1, deleting=True),
            "digits-worker-001-1 is being deleted; digits-worker-001-2 takes its place",
            id="being_deleted",
        ),
        pytest.param(
            None,
            "digits-worker-001-1 is gone; digits-worker-001-2 takes its place",
            id="gone",
        ),
    ],
)
def test_a_replacement_is_told(left: Worker | None, message: str) -> None:
    workers = (W0, left) if left else (W0,)
    report = make_report(W0, W1)
    planned = decide(workers=workers, report=report, membership=membership_of(W0, W1))
    assert [(each.reason, each.message) for each in planned.events] == [("WorkerReplaced", message)]


def test_a_pass_that_sees_the_same_plans_the_same_status() -> None:
    first = decide(workers=(W0, W1), report=make_report(W0, W1))
    later = NOW + timedelta(hours=1)
    observed = Observed(make_job(status=first.status), (W0, W1), UP, make_report(W0, W1))
    assert plan(observed, later).status == first.status
