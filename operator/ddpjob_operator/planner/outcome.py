"""The outcome of a job: success or failure, with a reason and a message.

May not: count restarts. The rendezvous service counts them, because it observes every exit.
"""

from __future__ import annotations

import dataclasses
from datetime import datetime, timedelta
from typing import Literal

from ddpjob_operator.api.constants import ConditionType, Reason
from ddpjob_operator.api.spec import DDPJob
from ddpjob_operator.planner.failures import bad_nodes, deaths
from ddpjob_operator.planner.observed import Observed, Phase
from ddpjob_protocol.failures.failure_rules import FailureReason
from ddpjob_protocol.messages.control import Report, ServiceState
from ddpjob_protocol.text import CUT, last_lines

TAIL_LINES = 20
TAIL_CHARACTERS = 4000


@dataclasses.dataclass(frozen=True)
class JobOutcome:
    """The outcome of a job that has ended."""

    type: Literal[ConditionType.COMPLETE, ConditionType.FAILED]
    reason: Reason
    message: str


def decide_outcome(
    observed: Observed,
    report: Report | None,
    ended: deaths.Deaths,
    now: datetime,
) -> JobOutcome | None:
    """Return the outcome of the job, or None if the job has not ended."""
    if report is not None and report.state is ServiceState.COMPLETE:
        return JobOutcome(ConditionType.COMPLETE, Reason.COMPLETED, report.reason)
    if report is not None and report.state is ServiceState.FAILED:
        return JobOutcome(ConditionType.FAILED, _reason(report), _failure_message(observed, report))
    if report is None and _all_succeeded(observed):
        message = "every worker ended with exit code 0"
        return JobOutcome(ConditionType.COMPLETE, Reason.COMPLETED, message)
    deadline = deadline_of(observed.job)
    if deadline is not None and now >= deadline:
        seconds = observed.job.spec.active_deadline_seconds
        message = f"the job ran for longer than activeDeadlineSeconds ({seconds})"
        return JobOutcome(ConditionType.FAILED, Reason.DEADLINE_EXCEEDED, message)
    if fatal := deaths.fatal(observed, ended.slots, now):
        return JobOutcome(ConditionType.FAILED, *fatal)
    return None


def deadline_of(job: DDPJob) -> datetime | None:
    """Return the time at which activeDeadlineSeconds expires, or None."""
    seconds, start = job.spec.active_deadline_seconds, job.status.start_time
    return start + timedelta(seconds=seconds) if seconds is not None and start else None


def expiry_of(job: DDPJob) -> datetime | None:
    """Return the time at which ttlSecondsAfterFinished expires, or None."""
    seconds, end = job.spec.ttl_seconds_after_finished, job.status.completion_time
    return end + timedelta(seconds=seconds) if seconds is not None and end else None


def _all_succeeded(observed: Observed) -> bool:
    """Return whether every worker of the membership exited with code 0.

    An agent exits with 0 only after its service reported the completion. The exit codes therefore
    prove the completion even if the service is lost.
    """
    membership = observed.job.status.membership
    good = {worker.name for worker in observed.workers if worker.phase is Phase.SUCCEEDED}
    return membership is not None and set(membership.workers) <= good


def _reason(report: Report) -> Reason:
    if report.failure is None:
        return Reason.TOO_MANY_LOSSES
    if report.failure.reason == FailureReason.OUT_OF_MEMORY:
        return Reason.OUT_OF_MEMORY
    has_run = not report.failure.permanent or report.failure.traceback
    return Reason.APPLICATION_FAILED if has_run else Reason.COMMAND_FAILED


def _failure_message(observed: Observed, report: Report) -> str:
    failure = report.failure
    if failure is None:
        return report.reason
    place = bad_nodes.place_of(failure, observed.workers)
    parts = [f"{report.reason}{place}"]
    if failure.summary not in report.reason:
        parts.append(failure.summary)
    if failure.traceback:
        who = "" if failure.rank is None else f" of rank {failure.rank}"
        parts.append(f"Traceback{who}:\n{_tail(failure.traceback)}")
    return "\n".join(parts)


def _tail(text: str) -> str:
    lines = text.rstrip().splitlines()
    tail = last_lines("\n".join(lines[-TAIL_LINES:]), TAIL_CHARACTERS)
    return tail if len(lines) <= TAIL_LINES or tail.startswith(CUT) else f"{CUT}\n{tail}"
