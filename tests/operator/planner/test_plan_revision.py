"""Pods that were made from a spec that has changed since."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from ddpjob_operator.api.spec.pinned_fields import PINNED, revision
from ddpjob_operator.planner.actions import CreateWorker, DeleteRendezvous, DeleteWorker
from ddpjob_operator.planner.observed import Phase, Rendezvous, Worker
from support.builders import make_job, make_report, make_worker
from support.planning import FAILED, PENDING, UP, W0, create, decide, membership_of

JOB = make_job()
NOW_MADE, EARLIER = revision(JOB.spec), "earlier"
OLD_SERVICE = Rendezvous(1, ready=True, revision=EARLIER)


def made(worker: Worker, revision: str = EARLIER) -> Worker:
    return dataclasses.replace(worker, revision=revision)


PULLS = made(make_worker(0, phase=PENDING, reason="ErrImagePull"))
ENDED = made(make_worker(1, incarnation=3, phase=FAILED, reason="StartError"))


def test_outdated_pods_are_replaced_at_once() -> None:
    planned = decide(JOB, (PULLS, ENDED), OLD_SERVICE)
    assert planned.actions == (
        DeleteRendezvous(1),
        create(0, 2),
        create(1, 4),  # without the pause of a worker that ended before it joined
        DeleteWorker(PULLS.name),
        DeleteWorker(ENDED.name),
    )
    assert planned.status.replace_after is None


@pytest.mark.parametrize("phase", [Phase.RUNNING, PENDING])
def test_a_change_that_races_with_the_first_membership_wins(phase: Phase) -> None:
    """The status has no membership yet, so the API server accepted the change."""
    old = made(make_worker(0, phase=phase))
    planned = decide(make_job(1), (old,), report=make_report(old))
    assert [type(each) for each in planned.actions] == [CreateWorker, DeleteWorker]
    assert planned.expectation is not None
    assert planned.expectation.draining == (old.name,)


@pytest.mark.parametrize("was", [NOW_MADE, ""], ids=["current", "of_an_older_operator"])
def test_others_stay(was: str) -> None:
    assert decide(JOB, (made(W0, was), made(make_worker(1), was)), UP).actions == ()


def test_after_the_first_membership_no_pod_is_outdated() -> None:
    """Its fields cannot have changed: another version of the operator counts them differently."""
    workers = (made(W0), made(make_worker(1)))
    report, known = make_report(*workers), membership_of(*workers)
    assert decide(JOB, workers, OLD_SERVICE, report, membership=known).actions == ()


SPOT: dict[str, Any] = {"name": "spot", "replicas": 1}
SAME = [
    {"launcher": "torchrun"},
    {"minReplicas": 2},
    {"maxReplicas": 9},
    {"suspend": True},
    {"elastic": {"settleSeconds": 1, "warmStart": True}},
]
OTHER: list[dict[str, Any]] = [
    {"image": "b"},
    {"env": [{"name": "A", "value": "1"}]},
    {"snapshot": {"everySteps": 7}},
    {"elastic": {"warmStart": False}},
    {"extraWorkerGroups": [SPOT]},
    {"extraWorkerGroups": [{**SPOT, "image": "b"}]},
]


@pytest.mark.parametrize("spec", SAME, ids=str)
def test_the_revision_stays(spec: dict[str, Any]) -> None:
    assert revision(make_job(**spec).spec) == NOW_MADE


def test_the_revision_changes() -> None:
    found = {revision(make_job(**spec).spec) for spec in [{}, *OTHER]}
    assert len(found) == 1 + len(OTHER)
    order = [SPOT, {"name": "other", "replicas": 1}]
    both = (make_job(extraWorkerGroups=order), make_job(extraWorkerGroups=order[::-1]))
    assert len({revision(job.spec) for job in both}) == 1
    sizes = ([SPOT], [{**SPOT, "replicas": 5}])
    assert len({revision(make_job(extraWorkerGroups=each).spec) for each in sizes}) == 1
    assert PINNED
