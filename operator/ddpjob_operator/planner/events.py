"""The events of a pass: differences between the previous status and the observation.

May not: report an unchanged fact again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddpjob_operator.api import constants
from ddpjob_operator.api.constants import ConditionType, EventReason
from ddpjob_operator.api.status import Condition, DDPJobStatus
from ddpjob_operator.planner import conditions
from ddpjob_operator.planner.actions import CreateWorker, Event
from ddpjob_operator.planner.observed import Observed
from ddpjob_operator.planner.outcome import JobOutcome
from ddpjob_operator.planner.placement import WorkerPlan
from ddpjob_protocol.control import Report
from ddpjob_protocol.membership import Cause, MembershipId
from ddpjob_protocol.text import plural

_BY_CAUSE = {
    Cause.STARTED: EventReason.STARTED,
    Cause.LOST: EventReason.WORKER_LOST,
    Cause.FAILED: EventReason.RESTARTED,
    Cause.LEFT: EventReason.WORKER_LEFT,
    Cause.JOINED: EventReason.WORKER_JOINED,
}
_WARNINGS = (Cause.LOST, Cause.FAILED)


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
    """Yield one event for each worker that replaces another worker."""
    refused = {refusal.name for refusal in observed.rejections}
    for action in worker_plan.create:
        if action.name not in refused and (how := _departure(observed, action)):
            text = f"{how}; {action.name} takes its place"
            yield Event(EventReason.WORKER_REPLACED.value, text)


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


def _stalled(given: Sequence[Condition]) -> Condition | None:
    found = conditions.find(given, ConditionType.STALLED)
    return found if found is not None and found.status == "True" else None


def _flips(old: Sequence[Condition], new: Sequence[Condition], type_: ConditionType) -> bool:
    return conditions.is_true(new, type_) and not conditions.is_true(old, type_)


def _departure(observed: Observed, new: CreateWorker) -> str:
    job = observed.job
    name = constants.worker_name(job.metadata.name, new.group, new.index, new.incarnation - 1)
    old = next((worker for worker in observed.workers if worker.name == name), None)
    if old is not None and old.terminal:
        return f"{name} has ended" + (f" ({old.message})" if old.message else "")
    if old is not None:
        return f"{name} is being deleted"
    membership = job.status.membership
    return f"{name} is gone" if membership and name in membership.workers else ""
