"""The time of a run by use: training, and each kind of loss. Pure."""

from __future__ import annotations

import dataclasses

from ddpjob_operator.report.run import Change, Hang, Run

# In the order of the page.
USES = {
    "training": "New steps",
    "started": "Start, until the first step",
    "lost": "Workers were lost",
    "failed": "Processes failed",
    "left": "Workers left",
    "joined": "Workers joined",
    "repeated": "Steps that were done again",
    "hang": "No step for long, without a change",
    "end": "After the last step",
}


@dataclasses.dataclass(frozen=True)
class TimeUse:
    """Seconds of each use; together they are the whole time of the page."""

    seconds: dict[str, float]

    @property
    def goodput(self) -> float:
        """The share of the time in which new steps were done."""
        whole = sum(self.seconds.values())
        return self.seconds["training"] / whole if whole else 0.0


def time_use(run: Run) -> TimeUse | None:
    """Return where the time went, or None if no step was reported."""
    if all(change.first_step is None for change in run.changes):
        return None
    lost = dict.fromkeys(USES, 0.0)
    lost["started"] = max(0.0, run.changes[0].since - run.begin)
    for change in run.changes:
        cause = change.cause if change.cause in USES else "started"
        lost[cause] += _stall(change)
        lost["repeated"] += _repeated(change, run.rate)
    lost["hang"] = sum(_hang(hang, run) for hang in run.hangs)
    last = [each.last_step_at for each in run.changes if each.last_step_at is not None]
    if run.ended and last and run.changes[-1].first_step is not None:
        lost["end"] = max(0.0, run.now - max(last))
    lost["training"] = max(0.0, run.elapsed - sum(lost.values()))
    return TimeUse(lost)


def _stall(change: Change) -> float:
    if change.stall_seconds is not None:
        return max(0.0, change.stall_seconds)
    return max(0.0, change.until - change.since) if change.first_step is None else 0.0


def _repeated(change: Change, rate: float | None) -> float:
    """Return the time of the repeated steps, by the mean duration of the steps around them."""
    each = change.step_seconds or (1 / rate if rate else 0.0)
    return min(change.repeated_steps * each, max(0.0, change.until - change.since))


def _hang(hang: Hang, run: Run) -> float:
    """Return the part of a hang between two steps of one membership; the rest is its change's."""
    until = run.now if hang.until is None else hang.until
    return sum(
        max(0.0, min(until, change.last_step_at or 0.0) - max(hang.since, change.first_step_at))
        for change in run.changes
        if change.first_step_at is not None
    )
