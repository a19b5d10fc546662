"""The policy of the operator as one pure function: what was observed, what is to be done.

Theory of operation. A pass observes, plans, executes the actions in their order, writes the
status, then emits the events. It may die anywhere in between: the next one observes afresh and
arrives at the same end. Two facts cannot be observed, therefore they are written to status in
one pass and acted on in the next:

- The epoch of the rendezvous service, before it is created. Once a service was seen, and this is
  written, it is told whom to expect, without which it forms no membership. So whichever service
  has formed one was recorded, and its successor gets a higher epoch.
- The end of the job, before the service that reported it is deleted. A finished job stays so.

May not: read a clock, perform an action, or keep anything between two calls.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from datetime import datetime

from ddpjob_agent.contract import Expectation, MembershipId, Report
from ddpjob_operator import conditions, events, failures, names, summary
from ddpjob_operator.actions import (
    Action,
    CreateRendezvous,
    CreateWorker,
    DeleteRendezvous,
    DeleteWorker,
    Event,
    Expect,
)
from ddpjob_operator.names import ConditionType
from ddpjob_operator.observed import Observed
from ddpjob_operator.placement import Roster, arrange
from ddpjob_operator.status import DDPJobStatus

__all__ = [
    "Action",
    "CreateRendezvous",
    "CreateWorker",
    "DeleteRendezvous",
    "DeleteWorker",
    "Event",
    "Expect",
    "Plan",
    "plan",
]


@dataclasses.dataclass(frozen=True)
class Plan:
    """What one pass is to do: actions in their order, then the status, then the events."""

    actions: tuple[Action, ...]
    status: DDPJobStatus
    events: tuple[Event, ...] = ()
    requeue_after: float | None = None  # seconds; plan again then, though nothing happens


def plan(observed: Observed, now: datetime) -> Plan:
    """Everything that follows from what was observed."""
    job, status = observed.job, observed.job.status
    if job.metadata.deletion_timestamp is not None:
        return Plan((), status)
    if conditions.finished(status.conditions):
        return Plan(tuple(_remove_all(observed)), summary.remains(observed))
    report = _trusted(observed)
    verdict = failures.verdict(observed, report, now)
    complete = verdict is not None and verdict.type is ConditionType.COMPLETE
    if job.spec.suspend and not complete:
        return _suspend(observed, now)
    if verdict is not None:
        told = (*events.memberships(observed, report), events.end(verdict))
        return Plan((), summary.ended(observed, report, verdict, now), told, requeue_after=0)
    return _carry_on(observed, report, now)


def _carry_on(observed: Observed, report: Report | None, now: datetime) -> Plan:
    observed = dataclasses.replace(observed, report=report)
    roster = arrange(observed, now)
    status = summary.active(observed, report, roster, now)
    epoch, noticed = _epochs(observed)
    status = status.model_copy(update={"rendezvous_epoch": epoch, "rendezvous_observed": noticed})
    if observed.job.status.rendezvous_epoch == 0:
        return Plan((), status, requeue_after=0)
    actions = (
        *_rendezvous(observed),
        *_expect(observed, roster),
        *roster.create,
        *roster.delete,
    )
    told = (*events.memberships(observed, report), *events.replacements(observed, roster))
    return Plan(actions, status, told, _again(observed, status, now))


def _suspend(observed: Observed, now: datetime) -> Plan:
    before = conditions.is_true(observed.job.status.conditions, ConditionType.SUSPENDED)
    told = () if before else (events.suspension(),)
    return Plan(tuple(_remove_all(observed)), summary.suspended(observed, now), told)


def _remove_all(observed: Observed) -> Iterator[Action]:
    for worker in observed.workers:
        if not worker.deleting:
            yield DeleteWorker(worker.name)
    if observed.rendezvous is not None:
        yield DeleteRendezvous(observed.rendezvous.epoch)


# --- the rendezvous service ----------------------------------------------------------------------


def _trusted(observed: Observed) -> Report | None:
    """The report, unless it is of a service or a membership that a later one has replaced."""
    report, seen, status = observed.report, observed.rendezvous, observed.job.status
    if report is None or (seen is not None and seen.epoch < status.rendezvous_epoch):
        return None
    if report.membership is None or status.membership is None:
        return report
    overtaken = report.membership.id < MembershipId.parse(status.membership.id)
    return None if overtaken else report


def _epochs(observed: Observed) -> tuple[int, int]:
    """The epoch to be in status, and the last one whose service was seen."""
    seen, status = observed.rendezvous, observed.job.status
    if seen is not None and seen.epoch >= status.rendezvous_epoch:
        return seen.epoch, seen.epoch
    gone = status.rendezvous_observed == status.rendezvous_epoch
    return status.rendezvous_epoch + gone, status.rendezvous_observed


def _rendezvous(observed: Observed) -> Iterator[Action]:
    seen, status = observed.rendezvous, observed.job.status
    epoch = status.rendezvous_epoch
    if seen is not None and seen.epoch >= epoch:
        return
    if seen is not None:
        yield DeleteRendezvous(seen.epoch)
    if status.rendezvous_observed < epoch:
        yield CreateRendezvous(names.rendezvous_name(observed.job.metadata.name, epoch), epoch)


def _expect(observed: Observed, roster: Roster) -> Iterator[Action]:
    seen, status = observed.rendezvous, observed.job.status
    recorded = status.rendezvous_epoch == status.rendezvous_observed
    if seen is None or not seen.ready or not recorded or seen.epoch != status.rendezvous_epoch:
        return
    stay = [worker.name for worker in roster.kept if not worker.unschedulable]
    come = [action.name for action in roster.create]
    leaving = [worker for worker in observed.workers if worker.deleting and not worker.terminal]
    go = {worker.name for worker in (*roster.draining, *leaving)}
    yield Expect(
        Expectation(
            workers=tuple(sorted(stay + come)),
            draining=tuple(sorted(go)),
            policy=observed.job.spec.policy(),
            failures=status.restarts.application,
        )
    )


def _again(observed: Observed, status: DDPJobStatus, now: datetime) -> float | None:
    old = observed.job.status
    before = (old.rendezvous_epoch, old.rendezvous_observed)
    if before != (status.rendezvous_epoch, status.rendezvous_observed):
        return 0
    times = [failures.deadline_of(observed.job), status.replace_after]
    return min((max(0.0, (at - now).total_seconds()) for at in times if at), default=None)
