"""The rules of a job for its failures, and the times that a budget with a window counts.

Service and operator judge by the same rules: the service the ends of processes, the operator the
ends of pods. The first rule that matches decides.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_TIMES = 100  # failures whose times are kept; with a window no budget is larger
MAX_RULES = 20


class RuleAction(str, enum.Enum):
    """The action for a failure."""

    IGNORE = "Ignore"  # restart, without a cost to the budget
    COUNT = "Count"  # restart, as without a rule
    FAIL_JOB = "FailJob"

    def __str__(self) -> str:
        return self.value


class FailureReason(str, enum.Enum):
    """The reason of a failure, for rules; most failures have only an exit code."""

    OUT_OF_MEMORY = "OutOfMemory"  # of a pod, or of a process in a pod that lives
    DISK_LIMIT = "DiskLimitExceeded"
    EVICTED = "Evicted"
    PREEMPTED = "Preempted"
    NODE_LOST = "NodeLost"
    HANG = "NoProgress"  # with `failurePolicy.onHang: Restart`

    def __str__(self) -> str:
        return self.value


@dataclasses.dataclass(frozen=True)
class FailureRule:
    """One rule: an action for exit codes, or for reasons."""

    action: str
    exit_codes: tuple[int, ...] = ()
    other_codes: bool = False  # it matches all exit codes but these
    reasons: tuple[str, ...] = ()

    def matches(self, exit_code: int | None, reason: str) -> bool:
        """Return whether the rule is about a failure; no rule is about an unknown exit code."""
        if self.reasons:
            return reason in self.reasons
        return exit_code is not None and (exit_code in self.exit_codes) != self.other_codes


def action_of(rules: Sequence[FailureRule], exit_code: int | None, reason: str) -> str:
    """Return the action of the first rule that matches; empty if none does.

    A process that a signal ended has the negative number of the signal, or 128 more, as in a shell.
    """
    code = 128 - exit_code if exit_code is not None and exit_code < 0 else exit_code
    return next((rule.action for rule in rules if rule.matches(code, reason)), "")


def merge_times(known: Sequence[int], told: Sequence[int]) -> tuple[int, ...]:
    """Return the times of failures that two peers know, oldest first, in seconds since the epoch.

    Both know the same failures, so a time counts as often as with the peer that knows it best.
    """
    union = collections.Counter(known) | collections.Counter(told)
    return tuple(sorted(union.elements())[-MAX_TIMES:])


def count_since(times: Sequence[float], since: float) -> int:
    """Return the number of failures after this time."""
    return sum(at > since for at in times)
