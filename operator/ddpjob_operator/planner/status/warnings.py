"""The warnings in the status, and an event for each new one.

The status remembers which warnings have an event, so a restart of the operator or of the
rendezvous service repeats none.

May not: find a problem. The agents, `api.job_warnings` and `storage_warnings` find them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from ddpjob_operator.api.constants import ConditionType
from ddpjob_operator.api.job_warnings import find_warnings
from ddpjob_operator.api.status import DDPJobStatus, WarningStatus
from ddpjob_operator.planner.actions import Event
from ddpjob_operator.planner.observed import Observed
from ddpjob_operator.planner.silence import silent_workers
from ddpjob_operator.planner.status.storage_warnings import not_shared
from ddpjob_protocol.messages.control import Report
from ddpjob_protocol.messages.warnings import (
    MAX_INCIDENTS,
    JobWarning,
    WarningReason,
    invalid_service_report,
    invalid_spec,
    not_isolated,
)

# Reasons of the job's own warnings, without a worker: each pass finds them again.
OWN = frozenset(
    (
        WarningReason.SNAPSHOT_NOT_SHARED,
        WarningReason.SIZE_FIXED,
        WarningReason.NOT_DISTRIBUTED,
        WarningReason.MODEL_NOT_KEPT,
        WarningReason.INVALID_REPORT,
        WarningReason.NOT_ISOLATED,
        WarningReason.INVALID_SPEC,
        WarningReason.NODES_AVOIDED,
        WarningReason.START_SLOW,
    )
)
START_SLOW = (
    "workers whose containers have run for 60 s have not registered yet; their agents still import"
    " torch, or cannot reach the rendezvous service; look at the logs of these pods, and wait: a"
    " worker that has not registered after 150 s is named (NotConnected)"
)
MAX_SHOWN = 3  # warnings in the message of Running; the others are counted


def current_warnings(
    observed: Observed, report: Report | None, now: datetime, *, avoided: str = ""
) -> tuple[WarningStatus, ...]:
    """Return the problems that hold and the last incidents; without a report, the known ones.

    `avoided` is the problem that a worker has no node because some are avoided.
    """
    known = {_identity(each): each for each in observed.job.status.warnings}
    found = [_status(each) for each in _own_warnings(observed, report, now)]
    if avoided:
        since = now.timestamp()
        found.append(_status(JobWarning(WarningReason.NODES_AVOIDED.value, avoided, since=since)))
    if report is None:
        found += (w for w in known.values() if _is_reported(w))
    else:
        found += map(_status, report.warnings)
    dated = {_identity(w): known.get(_identity(w), w).since for w in found}
    current = [w.model_copy(update={"since": dated[_identity(w)]}) for w in found]
    past = [w for key, w in known.items() if not w.ongoing and key not in dated]
    incidents = (*past, *(w for w in current if not w.ongoing))
    return (*(w for w in current if w.ongoing), *incidents[-MAX_INCIDENTS:])


def _is_reported(warning: WarningStatus) -> bool:
    """Return whether a problem is known from the report of the service alone."""
    if warning.reason == WarningReason.WORKER_NOT_STARTED:
        return False
    return bool(warning.worker) or warning.reason not in OWN


def _own_warnings(observed: Observed, report: Report | None, now: datetime) -> Iterator[JobWarning]:
    """Yield the problems of the job's own settings."""
    for found in find_warnings(observed.job):
        yield JobWarning(found.reason.value, found.message, since=now.timestamp())
    if own := not_shared(observed, report, now):
        yield own
    named = silent_workers.told(observed, now)
    for worker in observed.workers:
        if worker.name in named:
            text = silent_workers.describe(observed, worker, now)
            yield JobWarning(named[worker.name].value, text, worker.name, since=now.timestamp())
    if silent_workers.start_slowly(observed, now):
        yield JobWarning(WarningReason.START_SLOW.value, START_SLOW, since=now.timestamp())
    if observed.policy_problem:
        text = not_isolated(observed.policy_problem)
        yield JobWarning(WarningReason.NOT_ISOLATED.value, text, since=now.timestamp())
    if observed.spec_problems:
        text = invalid_spec(observed.spec_problems)
        yield JobWarning(WarningReason.INVALID_SPEC.value, text, since=now.timestamp())
    if observed.invalid_report:
        text = invalid_service_report(observed.invalid_report)
        yield JobWarning(WarningReason.INVALID_REPORT.value, text, since=now.timestamp())


def new_warning_events(observed: Observed, status: DDPJobStatus) -> Iterator[Event]:
    """Yield one event for each new warning; that of a stall with this reason has it, too."""
    known = {_identity(each) for each in observed.job.status.warnings}
    stalls = {each.reason for each in status.conditions if each.type == ConditionType.STALLED}
    for each in status.warnings:
        if _identity(each) not in known and each.reason not in stalls:
            yield Event(each.reason, _text(each), warning=True)


def describe(warnings: Sequence[WarningStatus]) -> str:
    """Return the first problems that hold, as one text."""
    texts = [_text(each) for each in warnings if each.ongoing]
    rest = len(texts) - MAX_SHOWN
    more = [f"and {rest} more in status.warnings"] if rest > 0 else []
    return "; ".join(texts[:MAX_SHOWN] + more)


def _identity(warning: WarningStatus) -> tuple[str, str, str]:
    return warning.reason, warning.worker, warning.message


def _status(warning: JobWarning) -> WarningStatus:
    return WarningStatus(
        reason=warning.reason,
        worker=warning.worker,
        message=warning.message,
        since=datetime.fromtimestamp(int(warning.since), UTC),
        ongoing=warning.ongoing,
        count=warning.count,
    )


def _text(warning: WarningStatus) -> str:
    return f"{warning.worker}: {warning.message}" if warning.worker else warning.message
