"""What people read of a job."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ddpjob_operator.cli.jobs import cells, text
from ddpjob_protocol.text import duration

NOW = datetime(2026, 1, 2, 12, tzinfo=UTC)


def moment(seconds: float) -> str:
    return (NOW - timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")


def job(state: str = "Running", **status: Any) -> dict[str, Any]:
    condition = {
        "type": state,
        "status": "True",
        "reason": "Training",
        "message": "2 workers with 4 processes",
        "lastTransitionTime": moment(200),
    }
    return {
        "metadata": {"name": "digits", "namespace": "team", "creationTimestamp": moment(7300)},
        "spec": {},
        "status": {
            "state": state,
            "ready": "2/2",
            "conditions": [condition],
            "membership": {
                "id": "1.1.3",
                "workers": ["digits-worker-000-1", "digits-worker-001-1"],
                "worldSize": 4,
                "since": moment(100),
                "cause": "lost",
            },
            "progress": {"step": 900, "totalSteps": 3000, "metrics": {"loss": 0.25}},
            "restarts": {"total": 3, "application": 1, "infrastructure": 2, "repeatedSteps": 12},
            "snapshot": {"step": 890},
            **status,
        },
    }


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (3600, "1h"),
        (3661, "1h1m"),
        (86399, "23h59m"),
        (90000, "1d1h"),
        (-5, "0s"),
    ],
)
def test_durations(seconds: float, expected: str) -> None:
    assert duration(seconds) == expected


def test_a_job_that_runs_in_a_table() -> None:
    lines = list(cells.Table(*text.HEADS, *text.WIDE).lines([text.job_row(job(), NOW, wide=True)]))
    assert [line.split("   ")[0] for line in lines] == ["NAME", "digits"]
    row = dict(zip((*text.HEADS, *text.WIDE), text.job_row(job(), NOW, wide=True), strict=True))
    assert row == {
        "NAME": "digits",
        "STATE": "Running",
        "READY": "2/2",
        "WORLD": "4",
        "PROGRESS": "900/3000",
        "RESTARTS": "3",
        "AGE": "2h1m",
        "ETA": "-",
        "CAUSE": "lost",
        "SNAPSHOT": "890",
        "MESSAGE": "2 workers with 4 processes",
    }


def test_a_job_that_the_operator_has_not_seen() -> None:
    new = {"metadata": {"name": "digits", "creationTimestamp": moment(5)}, "spec": {}}
    assert text.job_row(new, NOW) == ("digits", "Pending", "-", "-", "-", "0", "5s")


def test_a_job_that_has_ended_needs_no_workers() -> None:
    row = text.job_row(job("Complete"), NOW)
    assert row[:4] == ("digits", "Complete", "-", "-")


def test_the_description_of_a_job_with_problems() -> None:
    stalled = {
        "type": "Stalled",
        "status": "True",
        "reason": "ImageCannotBePulled",
        "message": "correct the image",
        "lastTransitionTime": moment(300),
    }
    waiting = {"type": "Running", "reason": "Waiting", "message": "1 of 2 workers"}
    found = job(
        "Stalled",
        conditions=[stalled, waiting],
        snapshot={},
        warnings=[
            {"reason": "Unreachable", "worker": "a", "message": "cannot reach b", "ongoing": True},
            {"reason": "SnapshotDegraded", "message": "full"},
            {"reason": "ProcessStuck", "worker": "b", "message": "hung", "ongoing": False},
        ],
        history=HISTORY,
    )
    pods: list[dict[str, Any]] = [
        {
            "metadata": {"name": "digits-worker-001-1", "creationTimestamp": moment(60)},
            "spec": {"nodeName": "n1"},
            "status": {"phase": "Running"},
        },
        {
            "metadata": {"name": "digits-worker-002-1", "creationTimestamp": moment(60)},
            "status": {"containerStatuses": [{"state": {"waiting": {"reason": "ErrImagePull"}}}]},
        },
    ]
    event = {
        "metadata": {"creationTimestamp": moment(30)},
        "lastTimestamp": None,
        "type": "Warning",
        "reason": "WorkerLost",
        "message": "one\ntwo",
    }
    assert "\n".join(text.describe(found, pods, [event], NOW)) == DESCRIPTION


HISTORY = [
    {
        "membership": "1.1.2",
        "cause": "started",
        "message": "joined a, b",
        "since": moment(3000),
        "worldSize": 4,
        "ended": ["b: OOMKilled"],
    },
    {
        "membership": "1.1.3",
        "cause": "lost",
        "message": "lost b",
        "since": moment(100),
        "worldSize": 2,
        "stallSeconds": 3.26,
        "firstStep": 31,
        "resumedStep": 30,
        "repeatedSteps": 12,
    },
]
DESCRIPTION = """\
digits (namespace team)

State       Stalled for 5m
            ImageCannotBePulled: correct the image
Waiting     1 of 2 workers
Explained   ddpjob explain ImageCannotBePulled, ddpjob explain Unreachable, ddpjob explain SnapshotDegraded
Workers     2/2 run
Membership  1.1.3: 2 workers, 4 processes, formed 100s ago after a lost worker
Progress    900/3000 steps; loss 0.25
Restarts    3 (1 failure, 2 losses); 12 steps repeated

Problems
  - a: cannot reach b
  - full

History
  AGE    MEMBERSHIP   CAUSE     WORLD   STALL   STEPS               MESSAGE
  50m    1.1.2        started   4       -       -                   joined a, b
  100s   1.1.3        lost      2       3.26s   from 31, 12 again   lost b; b: OOMKilled

Pods
  NAME                  NODE-RANK   STATE          NODE   AGE
  digits-worker-001-1   1           Running        n1     60s
  digits-worker-002-1   -           ErrImagePull   -      60s

Events
  AGE   REASON       MESSAGE
  30s   WorkerLost   ! one two"""


@pytest.mark.parametrize(("state", "formed"), [("Running", 100), ("Running", 5), ("Complete", 100)])
def test_a_script_that_reports_no_steps_is_explained(state: str, formed: float) -> None:
    membership = {"id": "1.1.1", "workers": ["a"], "worldSize": 1, "cause": "started"}
    found = job(state, progress=None, membership={**membership, "since": moment(formed)})
    described = "\n".join(text.describe(found, [], [], NOW))
    assert ("reports no steps" in described) == (state == "Running" and formed > 60)


def test_what_a_viewer_may_not_see_is_named() -> None:
    lines = list(text.describe(job(), "you lack a right", [], NOW))
    assert lines[-1] == "Pods: you lack a right"


PACE = {"stepsPerSecond": 0.25, "estimatedCompletion": moment(-3600)}


@pytest.mark.parametrize(
    ("state", "rate", "eta"),
    [("Running", "0.25", "1h"), ("Stalled", "0.25", "-"), ("Complete", "-", "-")],
)
def test_rate_and_time_left(state: str, rate: str, eta: str) -> None:
    found = job(state, progress={"step": 50, "totalSteps": 100, **PACE})
    assert text.top_row(found, NOW)[3:7] == ("50/100", "50%", rate, eta)
    assert text.job_row(found, NOW, wide=True)[7] == eta


def test_columns_keep_their_width() -> None:
    table = cells.Table("A", "B")
    assert list(table.lines([("wide", "1")])) == ["A      B", "wide   1"]
    assert list(table.lines([("x", "2")])) == ["x      2"]
