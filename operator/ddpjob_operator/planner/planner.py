"""The policy of the operator as one pure function: what was observed, what is to be done.

Theory of operation. A pass observes, plans, executes the actions in their order, writes the
status, then emits the events. It may die anywhere in between: the next one observes afresh and
arrives at the same end. Two facts cannot be observed, therefore they are written to status in
one pass and acted on in the next:

- The epoch of the rendezvous service, before it is created. Once a service was seen, and this is
  written, it is told whom to expect, without which it forms no membership. So whichever service
  has formed one was recorded, and its successor gets a higher epoch.
- The end of the job, before the service that reported it is deleted. A finished job stays so.

When the API server refuses a child, the pass plans once more, told of the refusals: they belong
into the status, and who was refused is not expected.

May not: read a clock, perform an action, or keep anything between two calls.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from datetime import datetime

from ddpjob_operator.api import constants
from ddpjob_operator.api.constants import ConditionType
from ddpjob_operator.api.status import DDPJobStatus
from ddpjob_operator.planner import conditions, events, outcome, status_builder
from ddpjob_operator.planner.actions import (
    Action,
    CreateAddress,
    CreateRendezvous,
    CreateWorker,
    DeleteRendezvous,
    DeleteWorker,
    Event,
    Expect,
)
from ddpjob_operator.planner.observed import Observed, Phase
from ddpjob_operator.planner.placement import Roster, arrange
from ddpjob_operator.planner.storage_warnings import not_shared_at
from ddpjob_protocol.control import Expectation, Report
from ddpjob_protocol.membership import MembershipId

__all__ = [
    "Action",
    "CreateAddress",
    "CreateRendezvous",
    "CreateWorker",
    "DeleteRendezvous",
    "DeleteWorker",
    "Event",
    "Expect",
    "Plan",
    "plan",
]


END_SECONDS = 30.0  # for workers of a finished job to end by themselves, where they may stay


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
        return _clean_up(observed, now)
    report = _trusted(observed)
    verdict = outcome.verdict(observed, report, now)
    complete = verdict is not None and verdict.type is ConditionType.COMPLETE
    if job.spec.paused and not complete:
        return _suspend(observed, now)
    if verdict is not None:
        told = (*events.memberships(observed, report), events.end(verdict))
        return Plan((), status_builder.ended(observed, report, verdict, now), told, requeue_after=0)
    return _carry_on(observed, report, now)


def _carry_on(observed: Observed, report: Report | None, now: datetime) -> Plan:
    observed = dataclasses.replace(observed, report=report)
    roster = arrange(observed, now)
    status = status_builder.active(observed, report, roster, now)
    epoch, noticed = _epochs(observed)
    status = status.model_copy(update={"rendezvous_epoch": epoch, "rendezvous_observed": noticed})
    if observed.job.status.rendezvous_epoch == 0:
        return Plan((), status, requeue_after=0)
    actions = (
        *_address(observed),
        *_rendezvous(observed),
        *_expect(observed, roster),
        *roster.create,
        *roster.delete,
    )
    told = (
        *events.memberships(observed, report),
        *events.repeats(observed, report),
        *events.overdue(observed, report),
        *events.stuck(observed, report),
        *events.unreachable(observed, report),
        *events.degraded(observed, report),
        *events.files(observed, report, status),
        *events.replacements(observed, roster),
        *events.changes(observed, status),
    )
    return Plan(actions, status, told, _again(observed, status, roster, now))


def _suspend(observed: Observed, now: datetime) -> Plan:
    status = status_builder.suspended(observed, now)
    told = tuple(events.changes(observed, status))
    return Plan(tuple(_remove_all(observed)), status, told)


def _clean_up(observed: Observed, now: datetime) -> Plan:
    """Remove what a finished job does not keep; who may be kept has a while to end by itself."""
    job = observed.job
    failed = conditions.is_true(job.status.conditions, ConditionType.FAILED)
    kept = {"All": tuple(Phase), "Failed": (Phase.FAILED,), "Never": ()}[job.spec.keep_pods]
    may_stay = job.spec.keep_pods == "All" or (job.spec.keep_pods == "Failed" and failed)
    since = job.status.completion_time or now
    left = END_SECONDS - (now - since).total_seconds() if may_stay else 0.0
    status = status_builder.remains(observed)
    waiting = [w for w in observed.workers if w.live and w.phase is Phase.RUNNING]
    if left > 0 and waiting:
        ended = [w for w in observed.workers if w.phase is Phase.PENDING and not w.deleting]
        return Plan(tuple(DeleteWorker(w.name) for w in ended), status, requeue_after=left)
    gone = (w for w in observed.workers if not w.deleting and not (w.terminal and w.phase in kept))
    actions = (*(DeleteWorker(w.name) for w in gone), *_remove_rendezvous(observed))
    return Plan(actions, status)


def _remove_all(observed: Observed) -> Iterator[Action]:
    for worker in observed.workers:
        if not worker.deleting:
            yield DeleteWorker(worker.name)
    yield from _remove_rendezvous(observed)


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


def _remove_rendezvous(observed: Observed) -> Iterator[Action]:
    if observed.rendezvous is not None:
        yield DeleteRendezvous(observed.rendezvous.epoch)
    for epoch in observed.spent:
        yield DeleteRendezvous(epoch)


def _address(observed: Observed) -> Iterator[Action]:
    if not observed.address:
        yield CreateAddress()


def _rendezvous(observed: Observed) -> Iterator[Action]:
    seen, status = observed.rendezvous, observed.job.status
    epoch = status.rendezvous_epoch
    for spent in observed.spent:
        yield DeleteRendezvous(spent)
    if seen is not None and seen.epoch >= epoch:
        return
    if seen is not None:
        yield DeleteRendezvous(seen.epoch)
    if status.rendezvous_observed < epoch:
        yield CreateRendezvous(constants.rendezvous_name(observed.job.metadata.name, epoch), epoch)


def _expect(observed: Observed, roster: Roster) -> Iterator[Action]:
    seen, status = observed.rendezvous, observed.job.status
    recorded = status.rendezvous_epoch == status.rendezvous_observed
    if seen is None or not seen.ready or not recorded or seen.epoch != status.rendezvous_epoch:
        return
    stay = [worker.name for worker in roster.kept if worker not in roster.stuck]
    refused = {refusal.name for refusal in observed.refusals}
    come = [action.name for action in roster.create if action.name not in refused]
    leaving = [worker for worker in observed.workers if worker.deleting and not worker.terminal]
    go = {worker.name for worker in (*roster.draining, *leaving)}
    yield Expect(
        Expectation(
            workers=tuple(sorted(stay + come)),
            draining=tuple(sorted(go)),
            policy=observed.job.policy(),
            failures=status.restarts.application,
        )
    )


def _again(observed: Observed, status: DDPJobStatus, roster: Roster, now: datetime) -> float | None:
    old = observed.job.status
    before = (old.rendezvous_epoch, old.rendezvous_observed)
    if before != (status.rendezvous_epoch, status.rendezvous_observed):
        return 0
    silent = not_shared_at(observed, observed.report)
    coming = silent if silent is not None and silent > now else None
    times = [outcome.deadline_of(observed.job), status.replace_after, roster.stuck_at, coming]
    return min((max(0.0, (at - now).total_seconds()) for at in times if at), default=None)
