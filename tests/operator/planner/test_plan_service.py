"""The start of a job, its rendezvous service, and the service that leads there."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import pytest

from ddpjob_operator.api.status import RendezvousFailures
from ddpjob_operator.planner.actions import (
    Action,
    CreateRendezvous,
    CreateService,
    DeleteRendezvous,
)
from ddpjob_operator.planner.observed import Observed, Rendezvous, Silence
from ddpjob_operator.planner.planner import plan
from ddpjob_protocol.messages.control import Expectation
from support.builders import NOW, make_job, make_report, make_status
from support.planning import (
    UP,
    W0,
    W1,
    create,
    decide,
    events_of,
    expect,
    membership_of,
    told,
)  # fmt: skip


def test_first_pass_only_writes_the_term() -> None:
    planned = plan(Observed(make_job()), NOW)
    assert planned.actions == ()
    assert (planned.status.rendezvous_term, planned.status.start_time) == (1, NOW)
    assert planned.requeue_after == 0


def test_second_pass_creates_the_service_and_all_workers_at_once() -> None:
    planned = decide(rendezvous=None, observed_rendezvous_term=0)
    service = CreateRendezvous("digits-rendezvous-1", 1)
    assert planned.actions == (service, create(0), create(1))


@pytest.mark.parametrize(
    ("rendezvous", "observed", "terms", "expectation", "actions"),
    [
        pytest.param(
            None, 0, (1, 0), None, (CreateRendezvous("digits-rendezvous-1", 1),), id="to_come"
        ),
        pytest.param(Rendezvous(1), 0, (1, 1), None, (), id="seen_first"),
        pytest.param(UP, 0, (1, 1), None, (), id="told_nothing_before_it_is_recorded"),
        pytest.param(Rendezvous(1), 1, (1, 1), None, (), id="not_ready"),
        pytest.param(UP, 1, (1, 1), expect(W0, W1), (), id="ready"),
        pytest.param(None, 1, (2, 1), None, (), id="gone"),
        pytest.param(Rendezvous(3, ready=True), 1, (3, 3), None, (), id="ahead_of_the_status"),
    ],
)
def test_epoch_is_written_before_the_service_is_created(
    rendezvous: Rendezvous | None,
    observed: int,
    terms: tuple[int, int],
    expectation: Expectation | None,
    actions: tuple[Action, ...],
) -> None:
    planned = decide(workers=(W0, W1), rendezvous=rendezvous, observed_rendezvous_term=observed)
    assert (planned.status.rendezvous_term, planned.status.observed_rendezvous_term) == terms
    assert (planned.expectation, planned.actions) == (expectation, actions)


def test_a_service_of_an_older_epoch_is_replaced() -> None:
    planned = decide(workers=(W0, W1), rendezvous_term=2, report=make_report(W0, W1))
    service = CreateRendezvous("digits-rendezvous-2", 2)
    assert planned.actions == (DeleteRendezvous(1), service)
    assert planned.status.membership is None


def test_a_service_that_no_agent_obeys_is_replaced_by_the_next_term() -> None:
    """As after a restore of etcd: the agents have memberships of a term that is lost."""
    superseded = dataclasses.replace(UP, superseded=True)
    planned = decide(workers=(W0, W1), rendezvous=superseded)
    assert planned.actions == (DeleteRendezvous(1),)
    gone = decide(workers=(W0, W1), rendezvous=None)
    assert gone.status.rendezvous_term == 2


def test_the_first_pass_makes_no_address_either() -> None:
    assert plan(Observed(make_job(), service=False), NOW).actions == ()


def test_the_address_is_made_where_it_is_missing_before_anything_needs_it() -> None:
    planned = decide(rendezvous=None, service=False, observed_rendezvous_term=0)
    service = CreateRendezvous("digits-rendezvous-1", 1)
    assert planned.actions == (CreateService(), service, create(0), create(1))
    planned = decide(workers=(W0, W1), service=False, report=make_report(W0, W1))
    assert (planned.expectation, planned.actions) == (expect(W0, W1), (CreateService(),))


@pytest.mark.parametrize(
    ("rendezvous", "status", "terms", "actions"),
    [
        pytest.param(
            None, {"observed_rendezvous_term": 1}, (2, 1), (DeleteRendezvous(1),), id="just_ended"
        ),
        pytest.param(
            None,
            {"rendezvous_term": 2, "observed_rendezvous_term": 1},
            (2, 1),
            (DeleteRendezvous(1), CreateRendezvous("digits-rendezvous-2", 2)),
            id="replaced_while_it_is_still_there",
        ),
        pytest.param(
            Rendezvous(2),
            {"rendezvous_term": 2, "observed_rendezvous_term": 2},
            (2, 2),
            (DeleteRendezvous(1),),
            id="beside_its_successor",
        ),
    ],
)
def test_a_service_that_has_ended_is_removed_and_replaced(
    rendezvous: Rendezvous | None,
    status: dict[str, Any],
    terms: tuple[int, int],
    actions: tuple[Action, ...],
) -> None:
    planned = decide(workers=(W0, W1), rendezvous=rendezvous, terminated_terms=(1,), **status)
    assert (planned.status.rendezvous_term, planned.status.observed_rendezvous_term) == terms
    assert planned.actions == actions


# --- a service that does not answer ---------------------------------------------------------------

TIMED_OUT = "no answer in time"
FORBIDDEN = "GET /report: 403 {'error': 'X-DDPJob-Token does not hold this job's token'}"
READY = dataclasses.replace(UP, address="10.244.3.135")


@pytest.mark.parametrize(
    ("seconds", "running"), [(14.9, ("True", "Training")), (15.0, ("Unknown", "NoReport"))]
)
def test_a_report_expires(seconds: float, running: tuple[str, str]) -> None:
    planned = decide(
        workers=(W0, W1),
        report=make_report(W0, W1),
        membership=membership_of(W0, W1),
        silence=Silence(seconds, TIMED_OUT, answered=True),
    )
    assert told(planned.status, "Running")[:2] == running
    expires = planned.requeue_after == pytest.approx(0.1)
    assert expires is (running[0] == "True")


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (TIMED_OUT, "check network policies and firewalls between nodes"),
        (FORBIDDEN, "delete pod digits-rendezvous-1, its successor gets the right one"),
    ],
)
def test_a_ready_service_that_does_not_answer_is_named(
    error: str, remedy: str, *, trained: bool
) -> None:
    planned = decide(
        workers=(W0, W1),
        rendezvous=READY,
        membership=membership_of(W0, W1) if trained else None,
        silence=Silence(15.0, error, answered=trained),
    )
    status, reason, message = told(planned.status, "Stalled")
    assert (status, reason) == ("True", "ServiceUnreachable")
    assert f"digits-rendezvous-1 at 10.244.3.135:29400, which is ready: {error}; " in message
    assert message.endswith(remedy)
    assert events_of(planned) == [("ServiceUnreachable", message, True)]


def test_a_service_that_is_not_ready_is_not_called_unreachable() -> None:
    planned = decide(rendezvous=Rendezvous(1), silence=Silence(60.0, TIMED_OUT, answered=False))
    assert told(planned.status, "Stalled")[1] != "ServiceUnreachable"


# --- a service that does not start, or does not work ----------------------------------------------

UNPLACED = Rendezvous(
    1, reason="Unschedulable", message="0/3 nodes are available.", unschedulable_since=NOW
)
CRASHES = Rendezvous(1, reason="Error", message="exec format error", restarts=3)
UNREADY = Rendezvous(1, running=True, not_ready_since=NOW, node="gpu-7")


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize(
    ("pod", "seconds", "reason", "words"),
    [
        pytest.param(UNPLACED, 9.9, "", "", id="a_node_may_become_free"),
        pytest.param(UNPLACED, 10, "RendezvousNotPlaced", "0/3 nodes are available", id="unplaced"),
        pytest.param(CRASHES, 0, "RendezvousFails", "exec format error", id="crashes"),
        pytest.param(dataclasses.replace(CRASHES, restarts=2), 0, "", "", id="crashed_twice"),
    ],
)
def test_a_service_that_does_not_start_is_named(
    pod: Rendezvous, seconds: float, reason: str, words: str, *, trained: bool
) -> None:
    planned = decide(
        workers=(W0, W1),
        rendezvous=pod,
        now=NOW + timedelta(seconds=seconds),
        membership=membership_of(W0, W1) if trained else None,
    )
    assert told(planned.status, "Stalled")[1] == reason
    assert words in told(planned.status, "Stalled")[2]


@pytest.mark.parametrize(
    ("pod", "seconds", "silence", "goes"),
    [
        pytest.param(UNREADY, 44, None, False, id="it_may_become_ready"),
        pytest.param(UNREADY, 45, None, True, id="not_ready_for_long"),
        pytest.param(UNREADY, 1, Silence(10, TIMED_OUT, answered=True), True, id="silent"),
        pytest.param(UNREADY, 1, Silence(9, TIMED_OUT, answered=True), False, id="silent_shortly"),
        pytest.param(
            UNREADY, 1, Silence(60, TIMED_OUT, answered=False), False, id="never_answered"
        ),
        pytest.param(
            dataclasses.replace(UNREADY, running=False), 999, None, False, id="does_not_run"
        ),
        pytest.param(UP, 999, Silence(60, TIMED_OUT, answered=True), False, id="ready_by_its_node"),
    ],
)
def test_the_next_term_takes_over_from_a_service_that_does_not_work(
    pod: Rendezvous, seconds: float, silence: Silence | None, *, goes: bool
) -> None:
    planned = decide(
        workers=(W0, W1),
        rendezvous=pod,
        now=NOW + timedelta(seconds=seconds),
        membership=membership_of(W0, W1),
        silence=silence,
    )
    assert (DeleteRendezvous(1) in planned.actions) is goes
    replaced = [text for reason, text, _ in events_of(planned) if reason == "RendezvousReplaced"]
    assert len(replaced) == goes
    assert all("gpu-7" in text for text in replaced)


@pytest.mark.parametrize(
    ("unrenewed", "answered", "goes"),
    [
        pytest.param(12, True, True, id="lost"),
        pytest.param(11, True, False, id="renewed_shortly_before"),
        pytest.param(None, True, False, id="not_known"),
        pytest.param(60, False, False, id="never_answered"),
    ],
)
def test_the_next_term_takes_over_from_a_service_on_a_lost_node(
    unrenewed: float | None, *, answered: bool, goes: bool
) -> None:
    ready = dataclasses.replace(READY, node="gpu-7")
    status = make_status(rendezvous_term=1, observed_rendezvous_term=1)
    observed = Observed(
        make_job(2, status=status),
        (W0, W1),
        ready,
        silence=Silence(14, TIMED_OUT, answered=answered),
        node_unrenewed=unrenewed,
    )
    planned = plan(observed, NOW)
    assert (DeleteRendezvous(1) in planned.actions) is goes
    failures = planned.status.rendezvous_failures
    assert (failures.node if failures else "") == ("gpu-7" if goes else "")
    if unrenewed == 11:
        assert planned.requeue_after == pytest.approx(1)


@pytest.mark.parametrize("seconds", [9, 10])
def test_a_pod_that_fits_on_no_other_node_than_the_lost_one_is_replaced(seconds: int) -> None:
    known = RendezvousFailures(term=1, count=1, message="lost", node="gpu-7")
    status = make_status(rendezvous_term=2, observed_rendezvous_term=2, rendezvous_failures=known)
    pod = dataclasses.replace(UNPLACED, term=2)
    planned = plan(
        Observed(make_job(2, status=status), (W0, W1), pod), NOW + timedelta(seconds=seconds)
    )
    assert (DeleteRendezvous(2) in planned.actions) is (seconds == 10)
    failures = planned.status.rendezvous_failures
    assert failures is not None
    assert failures.node == ("" if seconds == 10 else "gpu-7")


def test_the_pod_after_a_lost_node_avoids_it() -> None:
    known = RendezvousFailures(term=1, count=1, message="lost", node="gpu-7")
    status = make_status(rendezvous_term=2, observed_rendezvous_term=1, rendezvous_failures=known)
    planned = plan(Observed(make_job(2, status=status), (W0, W1)), NOW)
    assert CreateRendezvous("digits-rendezvous-2", 2, ("gpu-7",)) in planned.actions


def test_a_takeover_is_told_once_even_if_the_deletion_fails() -> None:
    job = make_job(2, status=make_status())
    seen = []
    for seconds in (50, 51, 52):
        planned = decide(job, (W0, W1), UNREADY, now=NOW + timedelta(seconds=seconds))
        job = job.model_copy(update={"status": planned.status})
        seen.append((DeleteRendezvous(1) in planned.actions, len(planned.events)))
    assert seen == [(True, 1), (True, 0), (True, 0)]
    assert job.status.rendezvous_failures is not None
    assert job.status.rendezvous_failures.count == 1
