"""The warnings that the service keeps, and the time until it drops them."""

from __future__ import annotations

from typing import Any

import pytest

from agent.membership.views import NOW, hello
from ddpjob_agent.registry.decisions import decide
from ddpjob_agent.registry.messages import on_message
from ddpjob_agent.registry.registration import on_disconnect, on_expectation, on_heartbeat, on_hello
from ddpjob_agent.registry.report import build_report
from ddpjob_agent.registry.state.registry_state import initial_state
from ddpjob_protocol.messages.control import Expectation, Policy
from ddpjob_protocol.messages.membership import Member
from ddpjob_protocol.messages.warnings import (
    MAX_INCIDENTS,
    AgentWarning,
    JobWarning,
    grace_period_too_short,
    process_stuck,
    unreachable,
)

FULL = "full; the job continues with the existing copies. Free space on that volume"


class Job:
    """Workers that train together, as a registry knows them."""

    def __init__(self, workers: str = "ab") -> None:
        self.workers = workers
        self.state = initial_state(term=1, boot=1, wall_offset=0.0)
        on_expectation(self.state, Expectation((*workers,), policy=Policy(minimum=1)), NOW)
        for name in workers:
            on_hello(self.state, hello(Member(name, f"{name}-first", "127.0.0.1", 1)), NOW)
        decide(self.state, NOW)

    def tell(self, worker: str, warning: AgentWarning, later: float = 0.0) -> None:
        on_message(self.state, worker, warning.to_message(), NOW + later)

    def saves(self, worker: str, problem: str = "", storages: int = 1) -> None:
        report = {"event": "saved", "step": 10, "problem": problem, "storages": storages}
        current = self.state.current
        message = {"type": "report", "membership": str(current and current.id), "report": report}
        on_message(self.state, worker, message, NOW)

    def keeps_files(self, worker: str, problem: str = "") -> None:
        message = {"type": "files", "scope": "1.1.1", "problem": problem}
        on_message(self.state, worker, message, NOW)

    def loses(self, worker: str) -> None:
        on_disconnect(self.state, worker, NOW)
        for other in {*self.workers} - {worker}:
            on_heartbeat(self.state, other, NOW + 60)
        decide(self.state, NOW + 60)
        assert self.state.current
        assert str(self.state.current.id) == "1.1.2"

    @property
    def warnings(self) -> tuple[JobWarning, ...]:
        return build_report(self.state, 1).warnings

    @property
    def told(self) -> list[tuple[str, str, str]]:
        return [(each.reason, each.worker, each.message) for each in self.warnings]


def test_problem_of_a_membership_ends_with_it() -> None:
    job = Job("abc")
    job.tell("a", unreachable("1.1.1", "bc"))
    (told,) = job.warnings
    assert (told.reason, told.worker, told.since) == ("Unreachable", "a", NOW)
    assert told.message.startswith(
        "cannot reach b, c; their processes cannot connect to each other"
    )
    job.loses("c")
    assert not job.warnings
    job.tell("a", unreachable("1.1.1", "b"))
    assert not job.warnings, "it was about the earlier one"


def test_snapshot_problem_lasts_until_its_writer_saves_without_it() -> None:
    job = Job("abc")
    job.saves("a", "short", storages=2)
    job.saves("b", storages=2)
    assert job.told == [("SnapshotDegraded", "a", "short")], "the other directory is fine"
    job.loses("c")
    assert job.told == [("SnapshotDegraded", "a", "short")], "nothing was saved since"
    job.saves("a", storages=2)
    assert not job.warnings


def test_writer_for_all_replaces_the_reports_of_others() -> None:
    job = Job()
    job.saves("a", "short")
    job.saves("b")
    assert not job.warnings


def test_problem_of_a_worker_ends_with_its_report_or_its_loss() -> None:
    job = Job("abc")
    for worker in "abc":
        job.keeps_files(worker, "full")
    job.keeps_files("a")
    assert job.told == [("FilesNotKept", worker, FULL) for worker in "bc"]
    job.loses("c")
    assert job.told == [("FilesNotKept", "b", FULL)]


def test_problem_that_is_reported_again_is_not_new() -> None:
    job = Job()
    for later in (0.0, 60.0):
        job.tell("a", AgentWarning("New", "x"), later)
    assert job.warnings == (JobWarning("New", "x", "a", NOW),)
    job.tell("a", AgentWarning("New", "y"), 70.0)
    assert job.warnings == (JobWarning("New", "y", "a", NOW + 70),)


def test_more_workers_are_counted() -> None:
    job = Job("abcdef")
    for worker in "abcdef":
        job.tell(worker, AgentWarning("New", "x"))
    others = JobWarning("New", "more workers have this problem", since=NOW, count=3)
    assert job.warnings == (*(JobWarning("New", "x", worker, NOW) for worker in "abc"), others)


@pytest.mark.parametrize(
    ("step", "end"),
    [
        (41, "its replacement resumes from its state at step 41"),
        (None, "was killed after 10 s (elastic.stuckSeconds); its state is lost"),
    ],
)
def test_incident_has_no_end(step: int | None, end: str) -> None:
    job = Job("abc")
    job.tell("c", process_stuck("1.1.1", step, "train.py:7 in main", 10))
    job.loses("c")
    (told,) = job.warnings
    assert (told.reason, told.worker, told.ongoing) == ("ProcessStuck", "c", False)
    assert "hung in a broken step of membership 1.1.1, at train.py:7 in main" in told.message
    assert told.message.endswith(end)


def test_last_incidents_are_kept_each_once() -> None:
    job = Job()
    for seconds in (*range(MAX_INCIDENTS + 2), MAX_INCIDENTS + 1):
        job.tell("a", grace_period_too_short(seconds))
    found: list[Any] = [each.message for each in job.warnings]
    expected = [grace_period_too_short(each).message for each in range(2, MAX_INCIDENTS + 2)]
    assert found == expected
