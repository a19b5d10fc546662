"""What people read of a job."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ddpjob_operator.cli.jobs import text

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
    assert text.duration(seconds) == expected


def test_a_job_that_runs_in_a_table() -> None:
    lines = list(text.Table(*text.HEADS, *text.WIDE).lines([text.job_row(job(), NOW, wide=True)]))
    assert [line.split("   ")[0] for line in lines] == ["NAME", "digits"]
    cells = dict(zip((*text.HEADS, *text.WIDE), text.job_row(job(), NOW, wide=True), strict=True))
    assert cells == {
        "NAME": "digits",
        "STATE": "Running",
        "READY": "2/2",
        "WORLD": "4",
        "PROGRESS": "900/3000",
        "RESTARTS": "3",
        "AGE": "2h1m",
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


def test_columns_keep_their_width() -> None:
    table = text.Table("A", "B")
    assert list(table.lines([("wide", "1")])) == ["A      B", "wide   1"]
    assert list(table.lines([("x", "2")])) == ["x      2"]
