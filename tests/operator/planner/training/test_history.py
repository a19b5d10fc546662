"""What status.history keeps of a job's memberships."""

from __future__ import annotations

import dataclasses
from datetime import timedelta

import pytest

from ddpjob_operator.api.status import DDPJobStatus
from ddpjob_operator.planner.observed import Observed, Worker
from ddpjob_operator.planner.planner import plan
from ddpjob_protocol.messages.control import MembershipRecord, Report
from ddpjob_protocol.messages.membership import Cause
from support.builders import NOW, make_job, make_membership, make_report, make_round, make_worker
from support.planning import FAILED, UP, W0, W1, decide

AT = NOW.timestamp()
FIRST = dataclasses.replace(
    make_round(make_membership(W0, W1)),
    first_step=1,
    first_step_at=AT + 8.04,
    last_step=40,
    last_step_at=AT + 50,
)
LOST = dataclasses.replace(
    make_round(make_membership(W0, n=2, cause=Cause.LOST, detail="lost digits-worker-001-1")),
    since=AT + 51.5,
)
RESUMED = dataclasses.replace(
    LOST, resumed_step=30, first_step=31, first_step_at=AT + 53.26, repeated_steps=10
)


def report(*records: MembershipRecord, **more: object) -> Report:
    membership = make_membership(W0, n=len(records), cause=Cause.LOST)
    return make_report(W0, membership=membership, memberships=records, **more)


def after(
    status: DDPJobStatus, *records: MembershipRecord, workers: tuple[Worker, ...] = (W0,)
) -> DDPJobStatus:
    observed = Observed(make_job(status=status), workers, UP, report(*records) if records else None)
    return plan(observed, NOW).status


def test_an_entry_has_cause_stall_and_steps() -> None:
    status = decide(workers=(W0,), report=report(FIRST, RESUMED)).status
    assert status.to_json()["history"] == [
        {
            "membership": "1.1.1",
            "cause": "started",
            "message": "the first",
            "since": "2026-01-02T03:04:05Z",
            "workers": 2,
            "worldSize": 2,
            "stallSeconds": 8.0,
            "firstStep": 1,
        },
        {
            "membership": "1.1.2",
            "cause": "lost",
            "message": "lost digits-worker-001-1",
            "since": "2026-01-02T03:04:56Z",
            "workers": 1,
            "worldSize": 1,
            "stallSeconds": 3.3,  # since the last step, not since the membership was formed
            "firstStep": 31,
            "resumedStep": 30,
            "repeatedSteps": 10,
        },
    ]


def test_the_reason_of_a_members_end_outlives_its_pod() -> None:
    first = decide(workers=(W0,), report=report(FIRST, LOST)).status
    killed = make_worker(1, phase=FAILED, reason="OOMKilled", message="exit code 137")
    second = after(first, FIRST, LOST, workers=(W0, killed))
    ended = ("digits-worker-001-1: OOMKilled: exit code 137",)
    assert [each.ended for each in second.history] == [ended, ()]
    other = dataclasses.replace(killed, reason="Deleted")
    third = after(second, FIRST, RESUMED, workers=(W0, other))
    assert [each.ended for each in third.history] == [ended, ()], "it is known"
    assert third.history[-1].first_step == 31


def test_the_reason_is_kept_while_no_service_reports() -> None:
    trains = make_report(W0, W1, memberships=(FIRST,))
    first = decide(workers=(W0, W1), report=trains).status
    killed = make_worker(1, phase=FAILED, reason="Error", message="exit code 3")
    assert after(first, workers=(W0, killed)).history[0].ended == (f"{W1.name}: exit code 3",)


def test_a_service_that_forgot_changes_nothing_of_what_is_known() -> None:
    first = decide(workers=(W0,), report=report(FIRST, RESUMED)).status
    relearned = dataclasses.replace(LOST, since=AT + 500, first_step=77, first_step_at=AT + 501)
    third = dataclasses.replace(LOST, id="2.1.3", cause="joined", since=AT + 600)
    assert after(first).history == first.history, "no report"
    assert after(first, relearned).history == first.history
    grown = after(first, relearned, third).history
    assert (grown[:2], grown[2].membership) == (first.history, "2.1.3")


def test_the_last_twenty_are_kept_and_none_returns() -> None:
    records = [dataclasses.replace(LOST, id=f"1.1.{n + 1}") for n in range(50)]
    status = decide(workers=(W0,), report=report(*records)).status
    assert [each.membership for each in status.history] == [f"1.1.{n}" for n in range(31, 51)]
    assert after(status, *records).history == status.history


@pytest.mark.parametrize("names", [1000, 3])
def test_a_message_is_bounded(names: int) -> None:
    joined = "joined " + ", ".join(f"digits-worker-{n:03d}-1" for n in range(names))
    status = decide(workers=(W0,), report=report(dataclasses.replace(FIRST, detail=joined))).status
    (entry,) = status.history
    assert len(entry.message) <= 300
    assert entry.message == joined or entry.message.endswith("-1,...")


def test_a_suspension_keeps_the_history() -> None:
    first = decide(workers=(W0,), report=report(FIRST, RESUMED)).status
    job = make_job(suspend=True, status=first)
    assert plan(Observed(job, (W0,), UP), NOW).status.history == first.history


def test_steps_alone_do_not_change_it() -> None:
    """It costs no write that the progress does not cost anyway."""
    first = decide(workers=(W0,), report=report(FIRST, RESUMED)).status
    further = dataclasses.replace(RESUMED, last_step=99, last_step_at=AT + 99, snapshot_step=90)
    observed = Observed(make_job(status=first), (W0,), UP, report(FIRST, further))
    assert plan(observed, NOW + timedelta(hours=1)).status == first
