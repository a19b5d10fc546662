"""The early loss of a silent process: two independent observations must agree.

A worker is lost before the heartbeat deadline only if

- its agent does not answer: it was asked for a heartbeat, and most others have answered since; and
- the job makes no progress: the members that answer read from their processes that no step was
  done, for longer than steps usually take.

A starved agent answers late, but then training continues, or the others answer late, too. A slow
step, such as an evaluation, stalls the job, but then all agents answer. So one observation alone
proves nothing. If it cannot be made, the heartbeat deadline counts.

May not: read a clock, open anything, keep state, import asyncio.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

ANSWER_SECONDS = 0.3  # without an answer for this time, a member does not answer
SLOWER = 4.0  # times the slowest answers so far: then a member is late for another reason
STALL_SECONDS = 0.5  # without a step, at least
STALL_STEPS = 4.0  # times the usual pause between two reports of steps
STALL_LONGEST = 2.0  # times the longest pause of the last minute


@dataclasses.dataclass(frozen=True)
class Signs:
    """The signs of life of one member. Times are the service's monotonic seconds."""

    worker: str
    asked_at: float | None = None  # first question without an answer; None: it has answered all
    slowest: float = 0.0  # seconds; slowest answer of the last minute
    connected: bool = True
    answered_at: float = 0.0  # last answer with the step of its processes
    stepped_at: float | None = None  # their last step; None: they report no steps


def usual_pause(pauses: Sequence[float]) -> float:
    """Return the median of the seconds between two reports of steps."""
    return sorted(pauses)[len(pauses) // 2]


def longest_step(pauses: Sequence[float]) -> float:
    """Return the seconds after which a job without a step has stalled, by its last pauses."""
    return max(STALL_SECONDS, STALL_STEPS * usual_pause(pauses), STALL_LONGEST * max(pauses))


def overdue(
    members: Sequence[Signs], patience: float, deadline: float, now: float
) -> dict[str, float]:
    """Return when each member that does not answer counts as lost, if both observations agree.

    The job has stalled after `patience` seconds without a step. `deadline` is the least time to
    answer.
    """
    silent = [each for each in members if _is_silent(each, now)]
    others = [each for each in members if not _is_silent(each, now)]
    if not silent or 2 * len(silent) > len(members) or not _has_stalled(others, patience):
        return {}
    slowest = max(each.slowest for each in others)
    return {
        each.worker: each.asked_at + max(deadline, SLOWER * max(slowest, each.slowest))
        for each in silent
        if each.asked_at is not None and each.connected
    }


def _is_silent(member: Signs, now: float) -> bool:
    asked_at = member.asked_at
    return not member.connected or (asked_at is not None and now - asked_at >= ANSWER_SECONDS)


def _has_stalled(others: Sequence[Signs], patience: float) -> bool:
    """Return whether most members that report steps have answered since the job stalled."""
    steps = [each.stepped_at for each in others if each.stepped_at is not None]
    if not steps:
        return False
    since = max(steps) + patience
    answers = [each.answered_at >= since for each in others if each.stepped_at is not None]
    return 2 * sum(answers) > len(answers)
