"""The lines of a local run: silence, joiners that wait, failures."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ddpjob_operator.local.output import signs_of_life
from ddpjob_operator.local.record import timeline as module
from ddpjob_operator.local.record.timeline import Timeline
from ddpjob_protocol.messages.control import ServiceState
from support.builders import make_failure, make_membership, make_report, make_round, make_worker

LOGS = Path("/logs")


class Lines:
    """A timeline, and what it prints without the times."""

    def __init__(self, file: Path) -> None:
        self._printed = io.StringIO()
        self.timeline = Timeline(Console(file=self._printed), file)

    def new(self) -> list[str]:
        """Lines since the last call."""
        text = self._printed.getvalue()
        self._printed.seek(0)
        self._printed.truncate()
        return [" ".join(line.split()[1:]) for line in text.splitlines()]


@pytest.fixture
def lines(tmp_path: Path) -> Lines:
    return Lines(tmp_path / "timeline.jsonl")


def test_a_silent_run_shows_signs_of_life(lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signs_of_life, "PAUSES", (0.0,))
    lines.timeline.tick(None, LOGS)
    assert lines.new() == ["waiting for 0 s: the rendezvous service does not answer; logs: /logs"]
    lines.timeline.tick(make_report(reason="0 of at least 1 worker is here"), LOGS)
    assert lines.new() == ["waiting for 0 s: 0 of at least 1 worker is here; logs: /logs"]
    report = make_report(make_worker())
    lines.timeline.tick(report, LOGS)
    assert lines.new() == ["running for 0 s; the script reports no steps; its output: /logs"]
    (record,) = report.memberships
    stepping = dataclasses.replace(record, first_step=1)
    lines.timeline.tick(dataclasses.replace(report, memberships=(stepping,)), LOGS)
    assert lines.new() == [], "its steps are signs enough"


def test_a_run_that_prints_needs_no_sign(lines: Lines) -> None:
    lines.timeline.tick(make_report(make_worker()), LOGS)
    assert lines.new() == []


def test_a_joiner_that_waits_is_explained_once(
    lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    why = "b waits for the next snapshot, 900 s at most"
    report = make_report(make_worker(), reason=f"running; {why}")
    lines.timeline.tick(report, LOGS)
    assert lines.new() == [], "it may wait for a moment only"
    monkeypatch.setattr(module, "JOIN_SECONDS", -1.0)
    for _ in range(3):
        lines.timeline.tick(report, LOGS)
    assert lines.new() == [f"waiting {why}"]
    lines.timeline.tick(make_report(make_worker()), LOGS)
    lines.timeline.tick(report, LOGS)
    lines.timeline.tick(report, LOGS)
    assert lines.new() == [f"waiting {why}"], "another joiner"


def test_a_failure_is_described_once(lines: Lines) -> None:
    summary = "rank 1: ValueError: loss is nan"
    failure = make_failure(summary=summary)
    first = make_membership(make_worker())
    records: tuple[Any, ...] = (make_round(first),)
    waiting = make_report(
        membership=first, memberships=records, failure=failure,
        state=ServiceState.WAITING, reason=f"{summary}; backing off",
    )  # fmt: skip
    second = dataclasses.replace(make_round(first), id="1.1.2", cause="failed", detail=summary)
    lines.timeline.follow(waiting)
    lines.timeline.follow(
        dataclasses.replace(
            waiting, state=ServiceState.RUNNING, reason="running", memberships=(*records, second)
        )
    )
    assert lines.new()[1:] == [
        f"waiting {summary}; backing off",
        "failed membership 2: world size 1; restarted after that failure",
    ]


def test_a_timeline_that_cannot_be_written_is_printed_all_the_same(tmp_path: Path) -> None:
    lines = Lines(tmp_path / "missing" / "timeline.jsonl")
    lines.timeline.line("event", "x")
    assert lines.new() == ["event x"]
