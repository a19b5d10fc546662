"""The progress in the status: steps, rate and expected completion.

All values depend on the report alone, not on the time of the pass: the same report gives the same
status. Rate and completion are rounded, so that people compare them with ease.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime

from ddpjob_operator.api.status import ProgressStatus
from ddpjob_protocol.messages.control import Report

DIGITS = 2  # significant digits of the rate
ROUND_SECONDS = 60  # the completion is rounded to whole minutes
MAX_SECONDS = 10 * 366 * 86400  # a later completion is not estimated


def build_progress(report: Report) -> ProgressStatus | None:
    """Return the progress in a report, or None before the first step."""
    if report.step is None:
        return None
    total, rate = report.total_steps, report.steps_per_second
    return ProgressStatus(
        step=report.step,
        total_steps=total,
        display=f"{report.step}/{total}" if total else str(report.step),
        steps_per_second=_round(rate) if rate else None,
        estimated_completion=_completion(report),
        metrics={n: v for n, v in report.metrics.items() if math.isfinite(v)},  # JSON has no NaN
    )


def _completion(report: Report) -> datetime | None:
    rate, at = report.steps_per_second, report.step_at
    if report.step is None or not report.total_steps or not rate or at is None:
        return None
    seconds = (report.total_steps - report.step) / rate
    if not 0 < seconds < MAX_SECONDS:
        return None
    return datetime.fromtimestamp(math.ceil((at + seconds) / ROUND_SECONDS) * ROUND_SECONDS, UTC)


def _round(rate: float) -> float:
    return float(f"{rate:.{DIGITS}g}")
