"""What keeps a job from running, as users are told of it: Stalled, its events, and who is refused."""

from __future__ import annotations

import dataclasses
from datetime import timedelta

import pytest

from ddpjob_operator.api.constants import Reason
from ddpjob_operator.planner.observed import Rejection, Rendezvous, Worker
from ddpjob_protocol.messages.control import Report
from support.builders import NOW, make_failures, make_job, make_report, make_worker
from support.planning import (
    DOES_NOT_HOLD,
    FAILED,
    PENDING,
    UP,
    W0,
    W1,
    create,
    decide,
    events_of,
    expect,
    membership_of,
    told,
)

HERE_1 = make_report(reason="1 of at least 2 workers are here")
BACK_OFF = 'Back-off pulling image "my/trainr"'
UNPULLED = make_worker(1, phase=PENDING, node="n", reason="ImagePullBackOff", message=BACK_OFF)
NO_GPU = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
NO_CLAIM = '0/3 nodes are available: persistentvolumeclaim "snapshots" not found.'
CLAIM = "create the claim, or name one that exists"
AGAIN = "ended like 2 workers before it: OOMKilled, exit code 137"
LATER = "it is replaced at 03:04:15 UTC"
MEMORY = "raise the memory limit or make the job need less"
PULL = "correct the image's name and tag, or give the pod the pull secret that it needs"
QUOTA = (
    'pods "digits-worker-001-1" is forbidden: exceeded quota: pods, used: pods=2, limited: pods=2'
)
REFUSED = Rejection("digits-worker-001-1", Reason.QUOTA_EXCEEDED, QUOTA)
APART = (
    "the workers are on several nodes, but only one node can use claim 'snapshots'; "
    "use a claim with access mode ReadWriteMany"
)


def unplaced(message: str) -> Worker:
    """The second worker, in the scheduler's words."""
    return make_worker(
        1, phase=PENDING, reason="Unschedulable", message=message, unschedulable=message
    )


@pytest.mark.parametrize(
    ("minimum", "workers", "report", "expected"),
    [
        pytest.param(
            2,
            (W0, unplaced(NO_GPU)),
            HERE_1,
            (
                "True",
                "TooFewPlaced",
                f"1/2 placed; digits-worker-001-1 is pending: {NO_GPU[:-1]}; at least 2 must be placed",
            ),
            id="too_few_placed",
        ),
        pytest.param(
            2,
            (W0, UNPULLED),
            HERE_1,
            (
                "True",
                "ImageCannotBePulled",
                f"digits-worker-001-1 cannot start: {BACK_OFF}; {PULL}",
            ),
            id="image_below_the_minimum",
        ),
        pytest.param(1, (W0, UNPULLED), make_report(W0), DOES_NOT_HOLD, id="image_of_one_too_many"),
        pytest.param(
            1, (W0, UNPULLED), HERE_1, DOES_NOT_HOLD, id="enough_others_are_about_to_start"
        ),
        pytest.param(
            2,
            (W0, unplaced(NO_CLAIM)),
            HERE_1,
            (
                "True",
                "VolumeMissing",
                f"digits-worker-001-1 cannot start: {NO_CLAIM[:-1]}; {CLAIM}",
            ),
            id="claim_that_is_not_there",
        ),
        pytest.param(
            2,
            (W0, make_worker(1, phase=PENDING, node="n", reason="ContainerCreating")),
            HERE_1,
            DOES_NOT_HOLD,
            id="only_a_matter_of_time",
        ),
        pytest.param(
            2,
            (W0, make_worker(1, 3, phase=FAILED, reason="OOMKilled", message="exit code 137")),
            HERE_1,
            (
                "True",
                "OutOfMemory",
                f"digits-worker-001-3 {AGAIN}; {MEMORY}; {LATER}",
            ),
            id="one_after_the_other_ends",
        ),
    ],
)
def test_workers_that_keep_a_job_from_running(
    minimum: int, workers: tuple[Worker, ...], report: Report, expected: tuple[str, str, str]
) -> None:
    before = (make_failures(make_worker(1, 2), count=2),)
    planned = decide(
        make_job(2, minReplicas=minimum), workers, report=report, worker_failures=before
    )
    assert told(planned.status, "Stalled") == expected


def test_a_worker_that_cannot_start_does_not_join() -> None:
    planned = decide(workers=(W0, UNPULLED), report=make_report(W0))
    text = f"2/2 placed; digits-worker-001-1 is pending: {BACK_OFF}"
    assert told(planned.status, "Resizing") == ("False", "PartlyPlaced", text)


@pytest.mark.parametrize(
    ("rendezvous", "expected"),
    [
        pytest.param(
            Rendezvous(1, reason="ImagePullBackOff", message=BACK_OFF),
            (
                "True",
                "ImageCannotBePulled",
                f"the rendezvous service cannot start: {BACK_OFF}; {PULL}",
            ),
            id="image",
        ),
        pytest.param(
            Rendezvous(1, reason="ErrImageNeverPull"),
            (
                "True",
                "ImageCannotBePulled",
                f"the rendezvous service cannot start: ErrImageNeverPull; {PULL}",
            ),
            id="only_a_word",
        ),
        pytest.param(Rendezvous(1, reason="ContainerCreating"), DOES_NOT_HOLD, id="on_its_way"),
        pytest.param(UP, DOES_NOT_HOLD, id="up"),
        pytest.param(
            Rendezvous(1, ready=True, reason="ImagePullBackOff"), DOES_NOT_HOLD, id="up_after_all"
        ),
    ],
)
@pytest.mark.parametrize("trained", [False, True], ids=["never_ran", "trains_still"])
def test_a_service_that_cannot_start(
    rendezvous: Rendezvous, expected: tuple[str, str, str], trained: bool
) -> None:
    membership = membership_of(W0, W1) if trained else None
    planned = decide(workers=(W0, W1), rendezvous=rendezvous, membership=membership)
    assert told(planned.status, "Stalled") == expected


def test_running_says_what_the_service_waits_for() -> None:
    planned = decide(rendezvous=Rendezvous(1, reason="ErrImageNeverPull"))
    text = "waiting for the rendezvous service: ErrImageNeverPull"
    assert told(planned.status, "Running") == ("False", "RendezvousNotReady", text)


# --- rejections ---------------------------------------------------------------------------------------


def test_who_is_refused_is_not_expected() -> None:
    planned = decide(workers=(W0,), rejections=(REFUSED,))
    assert (planned.expectation, planned.actions) == (expect(W0), (create(1),))


def test_a_refusal_stalls_a_job_that_does_not_run() -> None:
    planned = decide(workers=(W0,), report=HERE_1, rejections=(REFUSED,))
    text = f"digits-worker-001-1 was refused: {QUOTA}"
    assert told(planned.status, "Stalled") == ("True", "QuotaExceeded", text)
    assert planned.status.state == "Stalled"
    assert events_of(planned) == [("QuotaExceeded", text, True)]


def test_a_refusal_only_keeps_a_job_that_runs_from_its_size() -> None:
    planned = decide(workers=(W0,), report=make_report(W0), rejections=(REFUSED,))
    text = f"1/2 placed; digits-worker-001-1 was refused: {QUOTA}"
    assert told(planned.status, "Resizing") == ("False", "PartlyPlaced", text)
    assert told(planned.status, "Stalled") == DOES_NOT_HOLD
    assert planned.status.state == "Running"


@pytest.mark.parametrize("name", ["digits-rendezvous-1", "digits-rendezvous"])
@pytest.mark.parametrize("trained", [False, True], ids=["never_ran", "trains_still"])
def test_without_its_service_a_job_is_stalled(name: str, trained: bool) -> None:
    """What trains goes on only until its agents miss the service for too long."""
    planned = decide(
        workers=(W0, W1),
        rendezvous=None,
        observed_rendezvous_term=0,
        membership=membership_of(W0, W1) if trained else None,
        rejections=(Rejection(name, Reason.POD_REFUSED, "no"),),
    )
    assert told(planned.status, "Stalled") == ("True", "PodRefused", f"{name} was refused: no")


def test_a_foreign_service_does_not_stall_a_job_that_trains() -> None:
    foreign = Rejection("digits-rendezvous", Reason.NAME_TAKEN, "Service 'x' exists")
    planned = decide(workers=(W0, W1), report=make_report(W0, W1), rejections=(foreign,))
    assert told(planned.status, "Stalled") == DOES_NOT_HOLD
    assert told(planned.status, "Resizing")[2] == "2/2 placed; Service 'x' exists"


def test_rejections_for_one_reason_are_told_together() -> None:
    names = ("digits-rendezvous", *(f"digits-worker-00{n}-1" for n in range(7)))
    rejections = tuple(Rejection(name, Reason.POD_REFUSED, "no") for name in names)
    planned = decide(rendezvous=None, observed_rendezvous_term=0, rejections=rejections)
    others = f"the same holds for {', '.join(names[1:6])} and 2 more"
    assert told(planned.status, "Stalled")[2] == f"digits-rendezvous was refused: no; {others}"


@pytest.mark.parametrize("refused", [False, True])
def test_who_is_refused_takes_nobodys_place(refused: bool) -> None:
    left = make_worker(1, phase=FAILED)
    refusal = dataclasses.replace(REFUSED, name=create(1, 2).name)
    planned = decide(
        workers=(W0, left),
        report=make_report(W0),
        membership=membership_of(W0, left),
        rejections=(refusal,) if refused else (),
    )
    assert create(1, 2) in planned.actions
    assert [each.reason for each in planned.events] == ([] if refused else ["WorkerReplaced"])


# --- snapshots that not every node sees -------------------------------------------------------------


def test_a_claim_of_a_single_node_is_told_while_the_job_runs() -> None:
    planned = decide(workers=(W0, W1), report=make_report(W0, W1), claim="snapshots")
    text = f"2 workers with 2 processes; {APART}"
    assert told(planned.status, "Running") == ("True", "Training", text)
    assert told(planned.status, "Stalled") == DOES_NOT_HOLD


def test_a_claim_of_a_single_node_stalls_a_job_that_does_not_run() -> None:
    planned = decide(workers=(W0, W1), report=HERE_1, claim="snapshots")
    assert told(planned.status, "Stalled") == ("True", "VolumeNotShared", APART)


def test_a_claim_of_a_single_node_is_enough_for_a_single_node() -> None:
    together = dataclasses.replace(W1, node=W0.node)
    planned = decide(workers=(W0, together), report=HERE_1, claim="snapshots")
    assert told(planned.status, "Stalled") == DOES_NOT_HOLD


# --- events -----------------------------------------------------------------------------------------


def test_a_stall_is_told_once_for_each_reason() -> None:
    job = make_job(2, minReplicas=2)
    seen = []
    for worker in (
        unplaced(NO_GPU),
        unplaced(f"{NO_GPU} preemption: 0/3 nodes are available"),
        UNPULLED,
        dataclasses.replace(UNPULLED, reason="ErrImagePull", message="not found"),
        W1,
        UNPULLED,
    ):
        planned = decide(job, (W0, worker), report=HERE_1)
        job = job.model_copy(update={"status": planned.status})
        seen.append([each.reason for each in planned.events])
    once = ["ImageCannotBePulled"]
    assert seen == [["TooFewPlaced"], [], once, [], [], once]


class Incomparable(Worker):
    """A worker that must be looked up by its name: a job may have thousands."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise AssertionError("workers are compared")


def test_the_time_of_a_plan_grows_with_the_workers_and_not_with_their_square() -> None:
    long_ago = NOW - timedelta(hours=1)
    workers = tuple(
        Incomparable(
            f"digits-worker-{index:03}-1",
            "worker",
            index,
            1,
            unschedulable="no node",
            unschedulable_since=long_ago,
        )
        for index in range(3)
    )
    planned = decide(make_job(replicas=3, minReplicas=2), workers)
    assert told(planned.status, "Stalled")[0] == "True"
    assert planned.expectation is not None
    assert planned.expectation.workers == ()
