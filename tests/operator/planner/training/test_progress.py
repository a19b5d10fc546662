"""What status.progress says of rate and completion."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from ddpjob_operator.planner.training.progress import build_progress
from support.builders import NOW, make_report

AT = NOW.timestamp()  # 03:04:05


@pytest.mark.parametrize(
    ("facts", "display", "rate", "done_at"),
    [
        pytest.param(
            {"step": 40, "total_steps": 900, "step_at": AT, "steps_per_second": 1.2345},
            "40/900",
            1.2,
            (3, 16),
            id="total",
        ),
        pytest.param(
            {"step": 40, "step_at": AT, "steps_per_second": 123.4}, "40", 120.0, None, id="no_total"
        ),
        pytest.param({"step": 40, "total_steps": 900}, "40/900", None, None, id="no_rate_yet"),
        pytest.param(
            {"step": 900, "total_steps": 900, "step_at": AT, "steps_per_second": 2.0},
            "900/900",
            2.0,
            None,
            id="done",
        ),
        pytest.param(
            {"step": 1, "total_steps": 10**12, "step_at": AT, "steps_per_second": 0.001},
            "1/1000000000000",
            0.001,
            None,
            id="never",
        ),
    ],
)
def test_progress(
    facts: dict[str, Any], display: str, rate: float | None, done_at: tuple[int, int] | None
) -> None:
    progress = build_progress(make_report(**facts))
    assert progress is not None
    expected = datetime(2026, 1, 2, *done_at, tzinfo=UTC) if done_at else None
    assert (progress.display, progress.steps_per_second) == (display, rate)
    assert progress.estimated_completion == expected


def test_no_step_is_no_progress() -> None:
    assert build_progress(make_report(total_steps=9)) is None
