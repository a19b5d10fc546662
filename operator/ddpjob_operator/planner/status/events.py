"""The events of a pass: differences between the previous status and the observation.

May not: report an unchanged fact again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from ddpjob_operator.api import constants
from ddpjob_operator.api.constants import ConditionType, EventReason, Reason
from ddpjob_operator.api.status import Condition, DDPJobStatus
from ddpjob_operator.planner.actions import CreateWorker, Event
from ddpjob_operator.planner.failures import bad_nodes, moves
from ddpjob_operator.planner.failures.diagnosis import diagnose, quote
from ddpjob_operator.planner.observed import Observed, Phase, Worker
from ddpjob_operator.planner.outcome import JobOutcome
from ddpjob_operator.planner.placement import WorkerPlan
from ddpjob_operator.planner.silence import silent_workers
from ddpjob_operator.planner.status import conditions
from ddpjob_protocol.messages.control import Report
from ddpjob_protocol.messages.membership import Cause, MembershipId
from ddpjob_protocol.text import plural, shorten, some

_BY_CAUSE = {
    Cause.STARTED: EventReason.STARTED,
    Cause.LOST: EventReason.WORKER_LOST,
    Cause.FAILED: EventReason.RESTARTED,
    Cause.LEFT: EventReason.WORKER_LEFT,
    Cause.JOINED: EventReason.WORKER_JOINED,
}
_WARNINGS = (Cause.LOST, Cause.FAILED)
MAX_REPLACEMENTS = 3  # events of one pass; more become one event
MAX_QUOTE = 200  # characters of the message of a pod that ended


def membership_events(observed: Observed, report: Report | None) -> Iterator[Event]:
    """Yield one event for each membership newer than the one in status."""
    if report is None:
        return
    known = observed.job.status.membership
    newest = MembershipId.parse(known.id) if known else None
    for each in report.memberships:
        if newest is None or MembershipId.parse(each.id) > newest:
            cause = Cause(each.cause)
            size = f"{plural(len(each.workers), 'worker')}, {plural(each.world_size, 'process')}"
            text = f"membership {each.id} with {size}: {each.detail or each.cause}"
            if report.failure is not None and report.failure.summary in each.detail:
                text += bad_nodes.place_of(report.failure, observed.workers)
            yield Event(_BY_CAUSE[cause].value, text, cause in _WARNINGS)


def repeated_step_events(observed: Observed, report: Report | None) -> Iterator[Event]:
    """Yield an event if the count of repeated steps has grown."""
    known = observed.job.status.restarts.repeated_steps
    if report is not None and report.repeated_steps > known:
        text = (
            f"{repeated_steps_text(report.repeated_steps - known)}: the newest snapshot was older"
        )
        yield Event(EventReason.STEPS_REPEATED.value, text)


def repeated_steps_text(steps: int) -> str:
    """Return the number of repeated steps as text."""
    return f"{plural(steps, 'step')} {'is' if steps == 1 else 'are'} done again"


def replacement_events(observed: Observed, worker_plan: WorkerPlan) -> Iterator[Event]:
    """Yield an event for each worker that replaces a member or an ended worker; one for many."""
    found = [*_replacements(observed, worker_plan)]
    if len(found) <= MAX_REPLACEMENTS:
        yield from found
        return
    shown = "; ".join(event.message for event in found[:MAX_REPLACEMENTS])
    text = f"{len(found)} workers are replaced: {shown}; and {len(found) - MAX_REPLACEMENTS} more"
    yield Event(EventReason.WORKER_REPLACED.value, text, any(event.warning for event in found))


def _replacements(observed: Observed, worker_plan: WorkerPlan) -> Iterator[Event]:
    refused = {refusal.name for refusal in observed.rejections}
    workers = {worker.name: worker for worker in observed.workers}
    silent = {each.name: each.since for each in observed.job.status.silent_workers}
    members = observed.job.status.membership
    known = frozenset(members.workers if members else ())
    moved = {each.name: moves.describe(each) for each in worker_plan.movers}
    for action in worker_plan.create:
        if action.name in refused:
            continue
        name = _predecessor(observed, action)
        old = workers.get(name)
        node = silent_workers.lost_node(observed, old) if old is not None else ""
        how = moved.get(name) or _departure(name, old, silent, node, was_member=name in known)
        if how:
            text = f"{how}; {action.name} takes its place"
            crashed = name in moved or (old is not None and old.phase is Phase.FAILED)
            yield Event(EventReason.WORKER_REPLACED.value, text, warning=crashed)


def not_kept_events(names: Sequence[str], seconds: float) -> Iterator[Event]:
    """Yield an event about pods that are deleted although `keepPods` would keep them."""
    if names:
        text = (
            f"{some(names, conditions.MAX_NAMES)}: deleted, with the log, although keepPods keeps such pods: "
            f"other containers of the pod still ran {seconds:g} s after the end of the job; make "
            "them init containers with restartPolicy: Always, which end with the worker"
        )
        yield Event(EventReason.POD_NOT_KEPT.value, text, warning=True)


def end_event(verdict: JobOutcome) -> Event:
    """Return the event for the end of a job."""
    failed = verdict.type is ConditionType.FAILED
    reason = EventReason.FAILED if failed else EventReason.COMPLETED
    return Event(reason.value, verdict.message, failed)


def change_events(observed: Observed, status: DDPJobStatus) -> Iterator[Event]:
    """Yield events for a suspension, a resumption, and each new reason of a stall."""
    old, new = observed.job.status.conditions, status.conditions
    if _flips(old, new, ConditionType.SUSPENDED):
        yield Event(EventReason.SUSPENDED.value, "the job is suspended")
    if _flips(new, old, ConditionType.SUSPENDED):
        yield Event(EventReason.RESUMED.value, "the job is resumed")
    before, now = (_stalled(each) for each in (old, new))
    if now is not None and (before is None or before.reason != now.reason):
        yield Event(now.reason, now.message, warning=True)


def progress_events(
    observed: Observed, status: DDPJobStatus, report: Report | None, now: datetime
) -> Iterator[Event]:
    """Yield an event if a hang ends with a later step; a new membership has its own event."""
    job = observed.job.status
    before, current = _stalled(job.conditions), _stalled(status.conditions)
    if before is None or before.reason != Reason.NO_PROGRESS or before.last_transition_time is None:
        return
    known = job.progress.step if job.progress else None
    if current is not None and current.reason == Reason.NO_PROGRESS:
        return
    if report is not None and report.step is not None and known is not None and report.step > known:
        lasted = (now - before.last_transition_time).total_seconds()
        text = f"step {report.step} is done; the job was stalled for {lasted:.0f} s"
        yield Event(EventReason.PROGRESS_RESUMED.value, text)


def _stalled(given: Sequence[Condition]) -> Condition | None:
    found = conditions.find(given, ConditionType.STALLED)
    return found if found is not None and found.status == "True" else None


def _flips(old: Sequence[Condition], new: Sequence[Condition], type_: ConditionType) -> bool:
    return conditions.is_true(new, type_) and not conditions.is_true(old, type_)


def _predecessor(observed: Observed, new: CreateWorker) -> str:
    job = observed.job.metadata.name
    return constants.worker_name(job, new.group, new.index, new.incarnation - 1)


def _departure(
    name: str, old: Worker | None, silent: Mapping[str, datetime], node: str, *, was_member: bool
) -> str:
    """Return how a worker departed; empty if it is not replaced: it left in a planned way before.

    A suspended job has no membership, and a worker that is too many is deleted after it left.
    """
    if old is not None and name in silent and not old.terminal:
        lost = f", and its node {node} is lost" if node else ""
        return f"{name} has been silent since {silent[name]:%H:%M:%S} UTC{lost}"
    if old is not None and old.terminal and (was_member or not old.deleting):
        code = "" if old.exit_code is None else f" with exit code {old.exit_code}"
        return f"{name} has ended{code}{_reason(old)}"
    if not was_member:
        return ""
    return f"{name} is gone" if old is None else f"{name} is being deleted{_reason(old)}"


def _reason(worker: Worker) -> str:
    """Return the reason in brackets; a diagnosed one gets an event of its own, with the message."""
    diagnosis = diagnose(worker.reason, worker.message)
    text = diagnosis.reason if diagnosis else shorten(quote(worker.message), MAX_QUOTE)
    return f" ({text})" if text else ""
