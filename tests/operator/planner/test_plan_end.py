"""How a job ends, pauses and goes on."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import pytest

from ddpjob_operator.api.spec import DDPJob
from ddpjob_operator.api.status import RestartsStatus
from ddpjob_operator.planner.actions import DeleteJob, DeleteRendezvous, DeleteWorker
from ddpjob_operator.planner.observed import Observed, Phase, Worker
from ddpjob_operator.planner.planner import Plan, plan
from ddpjob_protocol.messages.control import Report, ServiceState
from support.builders import NOW, make_failure, make_job, make_report, make_status, make_worker
from support.planning import (
    FAILED,
    PENDING,
    UP,
    W0,
    W1,
    create,
    decide,
    events_of,
    membership_of,
    told,
)

# --- the end ---------------------------------------------------------------------------------------

FAILURE = make_failure(traceback="Traceback (most recent call last):\n  ...\nValueError: bad")
LONG = make_failure(traceback="\n".join(f"line {i}" for i in range(100)))
SUSPENDED = make_job(suspend=True)


@pytest.mark.parametrize(
    ("report", "type_", "reason", "message"),
    [
        pytest.param(
            make_report(
                W0, W1, state=ServiceState.COMPLETE, reason="every worker ended with exit code 0"
            ),
            "Complete",
            "Completed",
            "every worker ended with exit code 0",
            id="complete",
        ),
        pytest.param(
            make_report(
                W0,
                W1,
                state=ServiceState.FAILED,
                reason=f"{FAILURE.summary} (failure 4)",
                failure=FAILURE,
            ),
            "Failed",
            "ApplicationFailed",
            "rank 1 failed: ValueError: bad (failure 4)\nTraceback of rank 1:\n"
            "Traceback (most recent call last):\n  ...\nValueError: bad",
            id="application",
        ),
        pytest.param(
            make_report(W0, state=ServiceState.FAILED, reason="gave up", failure=LONG),
            "Failed",
            "ApplicationFailed",
            "gave up\nrank 1 failed: ValueError: bad\nTraceback of rank 1:\n...\n"
            + "\n".join(f"line {i}" for i in range(80, 100)),
            id="only_the_tail_of_a_traceback",
        ),
        pytest.param(
            make_report(
                W0,
                state=ServiceState.FAILED,
                reason="torchrun: not found",
                failure=make_failure(summary="torchrun: not found", permanent=True),
            ),
            "Failed",
            "CommandCannotStart",
            "torchrun: not found",
            id="command",
        ),
        pytest.param(
            make_report(
                W0,
                state=ServiceState.FAILED,
                reason="denied",
                failure=make_failure(summary="denied", traceback="denied", permanent=True),
            ),
            "Failed",
            "ApplicationFailed",
            "denied\nTraceback of rank 1:\ndenied",
            id="application_that_cannot_continue",
        ),
        pytest.param(
            make_report(
                W0,
                state=ServiceState.FAILED,
                reason="killed",
                failure=make_failure(summary="killed", reason="OutOfMemory"),
            ),
            "Failed",
            "OutOfMemory",
            "killed",
            id="memory",
        ),
        pytest.param(
            make_report(W0, state=ServiceState.FAILED, reason="lost a: more than 2 restarts"),
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
    planned = decide(workers=(W0, W1), report=report, replace_after=NOW)
    assert planned.actions == ()
    assert told(planned.status, type_) == ("True", reason, message)
    assert (planned.status.state, planned.status.completion_time) == (type_, NOW)
    assert planned.status.replace_after is None
    assert [each.reason for each in planned.events] == ["Started", type_.replace("ete", "eted")]
    assert planned.requeue_after == 0


def test_times_in_the_status_are_whole_seconds() -> None:
    now = NOW + timedelta(milliseconds=700)
    begun = decide(job=make_job(), workers=(W0, W1), report=make_report(W0, W1), now=now,
                   start_time=None).status  # fmt: skip
    done = make_report(W0, W1, state=ServiceState.COMPLETE, reason="done")
    ended = decide(workers=(W0, W1), report=done, now=now).status
    paused = decide(SUSPENDED, (W0, W1), now=now).status
    for status in (begun, ended, paused):
        assert {each.last_transition_time for each in status.conditions} == {NOW}
    assert (begun.start_time, ended.completion_time) == (NOW, NOW)


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
    end = decide(report=make_report(W0, W1, state=ServiceState.COMPLETE, reason="done")).status
    job = observed.pop("job", make_job()).model_copy(update={"status": end})
    later = NOW + timedelta(days=1)
    done = make_worker(1, phase=Phase.SUCCEEDED)
    planned = plan(Observed(job, (W0, done), UP, terminated_terms=(3,), **observed), later)
    assert (planned.status.state, end.ready, planned.status.ready) == ("Complete", "-", "-")
    assert planned.status.conditions == end.conditions
    gone = (DeleteWorker(W0.name), DeleteWorker(W1.name), DeleteRendezvous(1), DeleteRendezvous(3))
    assert planned.actions == gone
    assert (planned.events, planned.requeue_after) == ((), None)


WELL = make_worker(0, phase=Phase.SUCCEEDED)
BADLY = make_worker(1, phase=FAILED)
GOING = make_worker(2, phase=FAILED, deleting=True)
HERE = make_worker(3)
COMING = make_worker(4, phase=PENDING)
NONE_STAYS = (WELL, BADLY, HERE, COMING)


@pytest.mark.parametrize("late", [False, True], ids=["in_time_to_end", "too_late"])
@pytest.mark.parametrize(
    ("keep", "state", "waits", "removed"),
    [
        pytest.param({}, ServiceState.FAILED, True, (WELL, HERE, COMING), id="default_failed"),
        pytest.param({}, ServiceState.COMPLETE, False, (WELL, HERE, COMING), id="default_complete"),
        pytest.param(
            {"keepPods": "Failed"},
            ServiceState.FAILED,
            True,
            (WELL, HERE, COMING),
            id="failed_failed",
        ),
        pytest.param(
            {"keepPods": "All"}, ServiceState.FAILED, True, (HERE, COMING), id="all_failed"
        ),
        pytest.param(
            {"keepPods": "All"}, ServiceState.COMPLETE, True, (HERE, COMING), id="all_complete"
        ),
        pytest.param(
            {"keepPods": "Never"}, ServiceState.FAILED, False, NONE_STAYS, id="never_failed"
        ),
        pytest.param(
            {"keepPods": "Never"}, ServiceState.COMPLETE, False, NONE_STAYS, id="never_complete"
        ),
    ],
)
def test_workers_that_stay_after_the_end(
    keep: dict[str, Any], state: ServiceState, waits: bool, removed: tuple[Worker, ...], late: bool
) -> None:
    """Where a worker may stay, those that run have half a minute to end by themselves."""
    job = make_job(5, **keep)
    end = decide(job, report=make_report(W0, W1, state=state, reason="over")).status
    now = NOW + timedelta(seconds=30 if late else 29)
    workers = (WELL, BADLY, GOING, HERE, COMING)
    planned = plan(Observed(job.model_copy(update={"status": end}), workers, UP), now)
    if waits and not late:
        assert planned.actions == (DeleteWorker(COMING.name),)
        assert planned.requeue_after == 1
    else:
        assert planned.actions == (*(DeleteWorker(w.name) for w in removed), DeleteRendezvous(1))
        assert planned.requeue_after is None


@pytest.mark.parametrize("late", [False, True], ids=["in_time_to_end", "too_late"])
def test_a_pod_whose_sidecar_runs_on_is_not_kept(late: bool) -> None:
    """It would hold its GPUs for ever."""
    job = make_job(2)
    end = decide(job, report=make_report(W0, W1, state=ServiceState.FAILED, reason="over")).status
    job = job.model_copy(update={"status": end})
    held = make_worker(0, phase=FAILED, sidecars_left=True)
    planned = plan(Observed(job, (held, BADLY), None), NOW + timedelta(seconds=30 if late else 29))
    if late:
        assert planned.actions == (DeleteWorker(held.name),)
        [(reason, message, warning)] = events_of(planned)
        assert (reason, warning) == ("PodNotKept", True)
        assert message.startswith(f"{held.name}: deleted, with the log, although keepPods keeps")
        assert "restartPolicy: Always" in message
    else:
        assert (planned.actions, planned.events, planned.requeue_after) == ((), (), 1)


def test_nobody_waits_for_workers_that_have_ended() -> None:
    job = make_job(keepPods="All")
    end = decide(job, report=make_report(W0, W1, state=ServiceState.COMPLETE, reason="over")).status
    planned = plan(Observed(job.model_copy(update={"status": end}), (WELL, BADLY), UP), NOW)
    assert planned.actions == (DeleteRendezvous(1),)
    assert planned.requeue_after is None


@pytest.mark.parametrize(
    ("ttl", "seconds", "deleted", "requeue"),
    [
        pytest.param(None, 10**9, False, None, id="none"),
        pytest.param(0, 0, True, None, id="at_once"),
        pytest.param(60, 0, False, 60, id="at_the_end"),
        pytest.param(60, 59.5, False, 0.5, id="almost"),
        pytest.param(60, 60, True, None, id="over"),
        pytest.param(60, 10**9, True, None, id="after_a_long_pause_of_the_operator"),
    ],
)
@pytest.mark.parametrize("state", [ServiceState.COMPLETE, ServiceState.FAILED])
def test_a_finished_job_is_deleted_after_its_time(
    state: ServiceState, ttl: int | None, seconds: float, deleted: bool, requeue: float | None
) -> None:
    job = make_job(ttlSecondsAfterFinished=ttl)
    end = decide(job, report=make_report(W0, W1, state=state, reason="over")).status
    finished = job.model_copy(update={"status": end})
    planned = plan(Observed(finished), NOW + timedelta(seconds=seconds))
    assert (DeleteJob() in planned.actions, planned.requeue_after) == (deleted, requeue)


def test_only_a_finished_job_is_deleted() -> None:
    job = make_job(ttlSecondsAfterFinished=0)
    planned = decide(job, (W0, W1), report=make_report(W0, W1))
    assert DeleteJob() not in planned.actions
    assert DeleteJob() not in decide(make_job(ttlSecondsAfterFinished=0, suspend=True)).actions


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


@pytest.mark.parametrize(
    ("job", "until"),
    [
        pytest.param(SUSPENDED, "spec.suspend is false", id="suspended"),
        pytest.param(make_job(0), "spec.replicas is above 0", id="scaled_to_nothing"),
        pytest.param(
            make_job(0, minReplicas=2, extraWorkerGroups=[{"name": "spot", "replicas": 0}]),
            "spec.replicas is above 0",
            id="scaled_to_nothing_in_every_group",
        ),
    ],
)
def test_a_pause_deletes_everything_and_clears_the_clock(job: DDPJob, until: str) -> None:
    planned = decide(
        job,
        (W0, W1),
        report=make_report(W0, W1),
        membership=membership_of(W0, W1),
        restarts=RestartsStatus(application=2),
        replace_after=NOW,
    )
    assert planned.actions == (DeleteWorker(W0.name), DeleteWorker(W1.name))
    assert (planned.status.state, planned.status.start_time) == ("Suspended", None)
    assert (planned.status.membership, planned.status.restarts) == (None, RestartsStatus())
    assert planned.status.replace_after is None
    text = f"the job is suspended; it resumes when {until}"
    assert told(planned.status, "Suspended") == ("True", "Suspended", text)
    assert told(planned.status, "Running") == ("False", "Suspended", text)
    assert events_of(planned) == [("Suspended", "the job is suspended", False)]
    again = plan(Observed(job.model_copy(update={"status": planned.status})), NOW)
    assert (again.actions, again.events) == ((), ())
    assert again.status.conditions == planned.status.conditions


def test_the_service_of_a_paused_job_stays_until_the_last_worker_has_ended() -> None:
    """The workers agree on their last step through it."""
    leaving = dataclasses.replace(W0, deleting=True)
    ended = dataclasses.replace(leaving, phase=Phase.SUCCEEDED)
    assert decide(SUSPENDED, (leaving,)).actions == ()
    assert decide(SUSPENDED, (ended,)).actions == (DeleteRendezvous(1),)
    assert decide(SUSPENDED).actions == (DeleteRendezvous(1),)


@pytest.mark.parametrize(
    "paused", [pytest.param(SUSPENDED, id="suspended"), pytest.param(make_job(0), id="no_workers")]
)
def test_a_resumed_job_gets_a_new_epoch_and_a_new_start(paused: DDPJob) -> None:
    status = decide(paused).status
    later = NOW + timedelta(hours=1)
    planned = plan(Observed(make_job(status=status)), later)
    assert (planned.status.rendezvous_term, planned.status.start_time) == (2, later)
    assert told(planned.status, "Suspended")[0] == "False"
    assert events_of(planned) == [("Resumed", "the job is resumed", False)]
    resumed = plan(Observed(make_job(status=planned.status)), later)
    assert [type(each).__name__ for each in resumed.actions] == [
        "CreateRendezvous",
        "CreateWorker",
        "CreateWorker",
    ]


def test_one_group_without_workers_is_no_pause() -> None:
    job = make_job(0, extraWorkerGroups=[{"name": "spot", "replicas": 1}])
    planned = decide(job)
    assert planned.status.state == "Waiting"
    assert create(0, group="spot") in planned.actions


def test_completion_wins_over_suspension() -> None:
    report = make_report(W0, W1, state=ServiceState.COMPLETE, reason="done")
    assert decide(SUSPENDED, (W0, W1), report=report).status.state == "Complete"


def test_a_job_that_is_being_deleted_is_left_alone() -> None:
    job = make_job(status=make_status())
    metadata = job.metadata.model_copy(update={"deletion_timestamp": NOW})
    planned = plan(Observed(job.model_copy(update={"metadata": metadata})), NOW)
    assert planned == Plan((), job.status)
