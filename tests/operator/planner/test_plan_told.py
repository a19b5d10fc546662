"""What status, conditions and events say of a job."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import pytest

from ddpjob_operator.api.status import MembershipStatus, RestartsStatus
from ddpjob_operator.planner.actions import CreateWorker
from ddpjob_operator.planner.observed import Observed, Phase, Worker
from ddpjob_operator.planner.planner import plan
from ddpjob_protocol.messages.control import Report, ServiceState, WorkerRanks
from ddpjob_protocol.messages.membership import Cause, Member
from support.builders import NOW, make_job, make_membership, make_report, make_round, make_worker
from support.planning import (
    DOES_NOT_HOLD,
    FAILED,
    PENDING,
    UP,
    W0,
    W1,
    decide,
    events_of,
    membership_of,
    told,
)

LOG_LINE = "2026-11-24 07:40:48,221 ddpjob.agent out of disk"
NO_PYTHON = 'exec: "python3": executable file not found in $PATH'

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
            DOES_NOT_HOLD,
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


@pytest.mark.parametrize("second", [stuck, W1], ids=["pending", "joining"])
def test_a_minimum_that_was_raised_above_what_trains_is_told(second: Worker) -> None:
    planned = decide(make_job(minReplicas=2), (W0, second), report=make_report(W0))
    warning = "1 train, below the new minimum of 2: the next loss stops the job; "
    assert told(planned.status, "Resizing")[2].startswith(warning)


def test_running_is_unknown_while_a_lost_service_is_replaced() -> None:
    planned = decide(workers=(W0, W1), rendezvous=None, membership=membership_of(W0, W1))
    assert planned.status.state == "Unknown"
    assert planned.status.membership == membership_of(W0, W1)
    assert planned.actions == ()


def test_status_tells_what_the_service_reports() -> None:
    report = make_report(
        W0, W1, failures=1, losses=2, step=40, total_steps=900, metrics={"loss": 0.5}
    )
    report = dataclasses.replace(report, snapshot_step=30, snapshots_skipped=2)
    status = decide(workers=(W0, W1), report=report).status
    written = status.to_json()
    restarts = {"application": 1, "infrastructure": 2, "total": 3, "repeatedSteps": 0}
    assert written["restarts"] == restarts
    assert written["progress"] == {
        "step": 40,
        "totalSteps": 900,
        "display": "40/900",
        "metrics": {"loss": 0.5},
    }
    assert written["snapshot"] == {"step": 30, "skipped": 2}
    assert written["groups"] == [{"name": "worker", "replicas": 2, "scheduled": 2, "ready": 2}]
    assert written["ready"] == "2/2"
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


SMALL, LARGE = W0, W1
UNEQUAL = dataclasses.replace(
    make_membership(SMALL, LARGE),
    members=tuple(Member(w.name, w.name, "", n) for w, n in ((SMALL, 1), (LARGE, 3))),
)
BY_TORCHRUN = (WorkerRanks(LARGE.name, 0, 3), WorkerRanks(SMALL.name, 3, 1))


@pytest.mark.parametrize(
    ("spec", "report", "workers", "firsts"),
    [
        pytest.param({}, {"ranks": BY_TORCHRUN}, (LARGE, SMALL), (0, 3), id="torchrun"),
        pytest.param({}, {}, (SMALL, LARGE), (), id="not_known_yet"),
        pytest.param({}, {"live": True}, (SMALL, LARGE), (0, 1), id="live"),
        pytest.param(
            {"launcher": "python", "command": ["train"]}, {}, (SMALL, LARGE), (0, 1), id="python"
        ),
        pytest.param(
            {"launcher": "mpi", "command": ["mpirun", "train"]},
            {},
            (SMALL, LARGE),
            (0, 1),
            id="mpi",
        ),
    ],
)
def test_the_workers_of_a_membership_are_in_the_order_of_ranks(
    spec: dict[str, Any],
    report: dict[str, Any],
    workers: tuple[Worker, ...],
    firsts: tuple[int, ...],
) -> None:
    given = make_report(W0, W1, membership=UNEQUAL, **report)
    for known in (None, membership_of(W0, W1)):  # and the ranks are learned later
        status = decide(make_job(**spec), (W0, W1), report=given, membership=known).status
        assert status.membership is not None
        assert status.membership.workers == tuple(worker.name for worker in workers)
        assert status.membership.first_ranks == firsts


def test_ranks_that_are_known_stay_known() -> None:
    """A service that has just restarted has no entries of torchrun yet."""
    known = membership_of(W1, W0).model_copy(update={"first_ranks": (0, 3)})
    report = make_report(W0, W1, membership=UNEQUAL)
    assert decide(workers=(W0, W1), report=report, membership=known).status.membership == known


def test_a_report_of_an_overtaken_membership_is_not_believed() -> None:
    late = make_report(W0, W1, state=ServiceState.COMPLETE, step=99)
    now = membership_of(W0, W1, id_="2.1.2")
    planned = decide(workers=(W0, W1), report=late, membership=now)
    assert (planned.status.membership, planned.status.progress) == (now, None)
    assert planned.status.completion_time is None


def test_events_tell_every_membership_since_the_last_one_once() -> None:
    lost = make_membership(W0, n=2, cause=Cause.LOST, detail="lost digits-worker-001-1")
    joined = make_membership(W0, W1, n=3, cause=Cause.JOINED, detail="joined digits-worker-001-2")
    rounds = tuple(make_round(each) for each in (make_membership(W0, W1), lost, joined))
    report = make_report(W0, W1, membership=joined, memberships=rounds)
    planned = decide(workers=(W0, W1), report=report, membership=membership_of(W0, W1))
    assert events_of(planned) == [
        (
            "WorkerLost",
            "membership 1.1.2 with 1 worker, 1 process: lost digits-worker-001-1",
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
    ("left", "message", "crashed"),
    [
        pytest.param(
            make_worker(1, phase=FAILED, message="OOMKilled"),
            "digits-worker-001-1 has ended (OOMKilled); digits-worker-001-2 takes its place",
            True,
            id="ended",
        ),
        pytest.param(
            make_worker(1, phase=FAILED, message="epoch 49", exit_code=137),
            "digits-worker-001-1 has ended with exit code 137 (epoch 49); digits-worker-001-2 takes"
            " its place",
            True,
            id="killed",
        ),
        pytest.param(
            make_worker(1, deleting=True),
            "digits-worker-001-1 is being deleted; digits-worker-001-2 takes its place",
            False,
            id="being_deleted",
        ),
        pytest.param(
            None,
            "digits-worker-001-1 is gone; digits-worker-001-2 takes its place",
            False,
            id="gone",
        ),
        pytest.param(
            make_worker(1, deleting=True, reason="PreemptionByScheduler", message="by vip."),
            "digits-worker-001-1 is being deleted (by vip); digits-worker-001-2 takes its place",
            False,
            id="preempted",
        ),
        pytest.param(
            make_worker(1, phase=FAILED, message=f"x\n{LOG_LINE}"),
            "digits-worker-001-1 has ended (out of disk); digits-worker-001-2 takes its place",
            True,
            id="end_of_a_log",
        ),
        pytest.param(
            make_worker(1, phase=FAILED, reason="StartError", message=f"OCI: {NO_PYTHON}"),
            "digits-worker-001-1 has ended (PythonMissing); digits-worker-001-2 takes its place",
            True,
            id="diagnosed",
        ),
    ],
)
def test_a_replacement_is_told(left: Worker | None, message: str, crashed: bool) -> None:
    workers = (W0, left) if left else (W0,)
    report = make_report(W0, W1)
    planned = decide(workers=workers, report=report, membership=membership_of(W0, W1))
    assert events_of(planned) == [("WorkerReplaced", message, crashed)]


@pytest.mark.parametrize("phase", [Phase.RUNNING, FAILED, Phase.SUCCEEDED])
@pytest.mark.parametrize("membership", [None, membership_of(W0)], ids=["resumed", "scaled_up"])
def test_nothing_is_replaced_when_a_job_is_resumed_or_grows(
    membership: MembershipStatus | None, phase: Phase
) -> None:
    """The pods from before are still being deleted."""
    old = make_worker(1, phase=phase, deleting=True)
    planned = decide(workers=(W0, old), membership=membership)
    assert [action.name for action in planned.actions if isinstance(action, CreateWorker)]
    assert "WorkerReplaced" not in [each.reason for each in planned.events]


def test_a_pass_that_sees_the_same_plans_the_same_status() -> None:
    report = make_report(W0, W1, snapshot_step=5)
    first = decide(workers=(W0, W1), report=report)
    later = NOW + timedelta(hours=1)
    observed = Observed(make_job(status=first.status), (W0, W1), UP, report)
    assert plan(observed, later).status == first.status


def test_many_replacements_are_told_at_once() -> None:
    workers = tuple(make_worker(index) for index in range(12))
    job = make_job(replicas=12, maxReplicas=12)
    members = membership_of(*workers)
    planned = decide(job, workers[:2], report=make_report(*workers), membership=members)
    [(reason, message, _)] = events_of(planned)
    assert reason == "WorkerReplaced"
    assert message.startswith("10 workers are replaced: digits-worker-002-1 is gone; ")
    assert message.endswith("; and 7 more")
    assert message.count("takes its place") == 3
