"""Workers whose pods run but which send nothing, and workers that a gate holds."""

from __future__ import annotations

import dataclasses
from datetime import datetime, timedelta
from typing import Any

import pytest

from ddpjob_operator.api.spec import DDPJob
from ddpjob_operator.planner.actions import DeleteWorker
from ddpjob_operator.planner.observed import Worker
from ddpjob_operator.planner.planner import Plan
from ddpjob_protocol.messages.control import Report
from support.builders import NOW, make_job, make_membership, make_report, make_status, make_worker
from support.planning import (
    PENDING,
    W0,
    W1,
    W2,
    create,
    decide,
    events_of,
    membership_of,
    told,
)  # fmt: skip

WITHOUT_W1 = make_report(W0, W2, membership=make_membership(W0, W2, n=2))
ALONE = make_report(reason="1 of at least 2 workers are here", workers=(W0.name,))


def after(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def follow(
    job: DDPJob, workers: tuple[Worker, ...], report: Report | None, *times: float
) -> list[Plan]:
    """The plans of passes at these times, each with the status of the one before."""
    plans = []
    for seconds in times:
        planned = decide(job, workers, report=report, now=after(seconds))
        job = job.model_copy(update={"status": planned.status})
        plans.append(planned)
    return plans


def joined(*workers: Worker, **spec: object) -> DDPJob:
    status = make_status(membership=membership_of(*workers))
    return make_job(len(workers), status=status, **spec)


def test_a_silent_worker_is_named_once_and_then_replaced() -> None:
    """After orphanSeconds, 60 s, its processes have ended by themselves."""
    first, named, waits, last = follow(joined(W0, W1, W2), (W0, W1, W2), WITHOUT_W1, 0, 5, 74.9, 75)
    assert (first.events[1:], first.requeue_after) == ((), 5)
    [(reason, text, warning)] = events_of(named)
    assert (reason, warning) == ("WorkerSilent", True)
    assert text.startswith(f"{W1.name}: its pod is Running on node node-1, but ")
    assert "since 03:04:05 UTC" in text
    assert "replaced at 03:05:20 UTC" in text
    assert told(named.status, "Resizing")[:2] == ("True", "WorkerSilent")
    assert W1.name in told(named.status, "Running")[2]
    assert (waits.actions, waits.events) == ((), ())
    assert set(last.actions) == {DeleteWorker(W1.name), create(1, 2)}
    assert ("WorkerReplaced", False) in [(each[0], each[2]) for each in events_of(last)]
    assert last.expectation is not None
    assert W1.name not in last.expectation.workers


def test_a_worker_that_is_heard_of_again_stays() -> None:
    job = joined(W0, W1, W2)
    [_, planned] = follow(job, (W0, W1, W2), WITHOUT_W1, 0, 60)
    job = job.model_copy(update={"status": planned.status})
    heard = make_report(W0, W1, W2, membership=make_membership(W0, W1, W2, n=3))
    [back] = follow(job, (W0, W1, W2), heard, 61)
    assert back.status.silent_workers == ()
    assert back.status.warnings == ()
    lost = make_report(W0, W2, membership=make_membership(W0, W2, n=4))
    [again] = follow(job.model_copy(update={"status": back.status}), (W0, W1, W2), lost, 80)
    assert again.actions == ()


def test_a_silence_from_before_the_clock_was_set_back_counts_from_now() -> None:
    *_, last = follow(joined(W0, W1, W2), (W0, W1, W2), WITHOUT_W1, 3600, 0, 75)
    assert set(last.actions) == {DeleteWorker(W1.name), create(1, 2)}


def test_silence_does_not_count_without_a_report() -> None:
    """A service that starts again hears of nobody at first."""
    job = joined(W0, W1, W2)
    for seconds, report in ((0, WITHOUT_W1), (60, None), (80, WITHOUT_W1)):
        planned = decide(job, (W0, W1, W2), report=report, now=after(seconds))
        job = job.model_copy(update={"status": planned.status})
        assert planned.actions == ()


def test_a_job_that_waits_for_a_silent_worker_is_stalled() -> None:
    [_, planned] = follow(joined(W0, W1, minReplicas=2), (W0, W1), ALONE, 0, 5)
    status, reason, text = told(planned.status, "Stalled")
    assert (status, reason) == ("True", "WorkerSilent")
    assert "look at the node and its network" in text


@pytest.mark.parametrize(("seconds", "named"), [(149.9, False), (150, True), (9000, True)])
def test_a_worker_that_never_registers_is_named_and_stays(seconds: float, *, named: bool) -> None:
    mute = dataclasses.replace(W1, running_since=NOW)
    [planned] = follow(make_job(2, status=make_status(), minReplicas=2), (W0, mute), ALONE, seconds)
    assert (told(planned.status, "Stalled")[1] == "NotConnected") is named
    assert planned.actions == ()
    if named:
        text = told(planned.status, "Stalled")[2]
        assert "port 29400" in text
        assert "check network policies" in text
        assert [each[0] for each in events_of(planned)] == ["NotConnected"]
    else:
        assert planned.requeue_after == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("seconds", "named"), [(59.9, False), (60, True), (149, True), (150, False)]
)
def test_a_slow_start_is_named_before_the_network_is_suspected(
    seconds: float, *, named: bool
) -> None:
    """An agent imports torch before it registers."""
    mute = dataclasses.replace(W1, running_since=NOW)
    [planned] = follow(make_job(2, status=make_status(), minReplicas=2), (W0, mute), ALONE, seconds)
    assert ([each.reason for each in planned.status.warnings] == ["StartSlow"]) is named
    if named:
        assert [each[0] for each in events_of(planned)] == ["StartSlow"]
        assert told(planned.status, "Stalled")[0] != "True"


# --- scheduling gates -----------------------------------------------------------------------------

GATES = ("kueue.x-k8s.io/admission",)
HELD = make_worker(
    1, phase=PENDING, gates=GATES, reason="SchedulingGated", message=f"held by {GATES[0]}"
)


def test_a_job_does_not_wait_for_a_worker_behind_a_gate() -> None:
    planned = decide(make_job(2), (W0, HELD), report=make_report(W0))
    assert planned.expectation is not None
    assert planned.expectation.workers == (W0.name,)
    status, reason, text = told(planned.status, "Resizing")
    assert (status, reason) == ("False", "Gated")
    assert GATES[0] in text


def test_a_job_below_its_minimum_behind_a_gate_is_stalled() -> None:
    planned = decide(make_job(2, minReplicas=2), (W0, HELD), report=ALONE)
    status, reason, text = told(planned.status, "Stalled")
    assert (status, reason) == ("True", "Gated")
    assert GATES[0] in text
    assert "at least 2 must be placed" in text


# --- pods that have a node and do not start --------------------------------------------------------


def placed(index: int, **fields: Any) -> Worker:
    """A worker that got its node now, and whose container waits there."""
    facts = {"node": f"node-{index}", "placed_at": NOW, **fields}
    return make_worker(index, phase=PENDING, **facts)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        pytest.param({}, "the kubelet gives no reason", id="nothing_known"),
        pytest.param(
            {"sandbox_ready": False}, "its volumes, devices or network are not ready", id="volume"
        ),
        pytest.param(
            {"sandbox_ready": True}, "its image is pulled, or an init container runs", id="image"
        ),
        pytest.param(
            {"reason": "CrashLoopBackOff", "message": "back-off", "sandbox_ready": True},
            "CrashLoopBackOff: back-off",
            id="an_init_container",
        ),
    ],
)
def test_a_worker_that_does_not_start_is_named_and_stays(fields: Any, why: str) -> None:
    slow = placed(2, **fields)
    report = make_report(W0, W1, membership=make_membership(W0, W1, n=2), snapshot_step=1)
    before, named, later = follow(joined(W0, W1, slow), (W0, W1, slow), report, 599, 600, 90_000)
    assert before.requeue_after == 1
    assert (before.status.warnings, named.actions, later.actions) == ((), (), ())
    [(reason, text, warning)] = events_of(named)
    assert (reason, warning) == ("WorkerNotStarted", True)
    assert text.startswith(f"{slow.name}: its pod is on node node-2 since 03:04:05 UTC, and ")
    assert f"has not started: {why}. See" in text
    assert f"kubectl describe pod {slow.name}" in text
    assert told(named.status, "Resizing")[:2] == ("True", "WorkerNotStarted")
    assert slow.name in told(named.status, "Running")[2]
    assert later.events == ()
    [after_start] = follow(
        joined(W0, W1, slow).model_copy(update={"status": later.status}),
        (W0, W1, make_worker(2)), report, 90_001,
    )  # fmt: skip
    assert after_start.status.warnings == ()


@pytest.mark.parametrize("report", [None, ALONE], ids=["without_a_report", "with_a_report"])
def test_a_job_whose_workers_do_not_start_is_stalled(report: Report | None) -> None:
    slow = (placed(0), placed(1))
    first, named, later = follow(make_job(2, status=make_status()), slow, report, 0, 600, 700)
    assert told(first.status, "Stalled")[0] == "False"
    status, reason, text = told(named.status, "Stalled")
    assert (status, reason) == ("True", "WorkerNotStarted")
    assert text.startswith(f"{slow[0].name}: its pod is on node node-0 since")
    assert len(later.status.warnings) == 2, "each once"
    assert [each[0] for each in events_of(named)] == ["WorkerNotStarted"]
    assert later.events == ()


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"reason": "ImagePullBackOff"}, id="diagnosed"),
        pytest.param({"node": None, "placed_at": None, "unschedulable": "full"}, id="unplaced"),
        pytest.param({"deleting": True}, id="deleted"),
    ],
)
def test_other_workers_that_wait_have_their_own_reasons(fields: Any) -> None:
    report = make_report(W0, W1, membership=make_membership(W0, W1, n=2))
    slow = placed(2, **fields)
    [planned] = follow(joined(W0, W1, slow), (W0, W1, slow), report, 6000)
    assert "WorkerNotStarted" not in [each.reason for each in planned.status.warnings]
