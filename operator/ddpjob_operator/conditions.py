"""What is true of a job that has not ended, how that changes, and what it comes to in one word.

May not: decide what is to be done, or read a condition back to learn what can be observed.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

from ddpjob_agent.contract import Report, State
from ddpjob_operator.names import ConditionType, Reason
from ddpjob_operator.observed import Observed, Worker
from ddpjob_operator.placement import Roster
from ddpjob_operator.status import Condition, DDPJobStatus

_PRECEDENCE = (
    ConditionType.FAILED,
    ConditionType.COMPLETE,
    ConditionType.SUSPENDED,
    ConditionType.STALLED,
    ConditionType.RESIZING,
    ConditionType.RUNNING,
)


def condition(
    type_: ConditionType,
    holds: bool | None,
    reason: Reason,
    message: str = "",
) -> Condition:
    """A condition without its time; None is unknown."""
    status: Literal["True", "False", "Unknown"]
    status = "Unknown" if holds is None else "True" if holds else "False"
    return Condition(type=type_.value, status=status, reason=reason.value, message=message)


def set_condition(
    conditions: Sequence[Condition], new: Condition, now: datetime
) -> tuple[Condition, ...]:
    """The conditions with this one in its place; its time changes only when its status flips."""
    old = find(conditions, new.type)
    same = old is not None and old.status == new.status
    since = old.last_transition_time if old is not None and same else now
    dated = new.model_copy(update={"last_transition_time": since})
    if old is None:
        return (*conditions, dated)
    return tuple(dated if each.type == new.type else each for each in conditions)


def find(conditions: Sequence[Condition], type_: str) -> Condition | None:
    """The condition of this type."""
    return next((each for each in conditions if each.type == type_), None)


def is_true(conditions: Sequence[Condition], type_: str) -> bool:
    """Whether the condition is there and holds."""
    condition = find(conditions, type_)
    return condition is not None and condition.status == "True"


def finished(conditions: Sequence[Condition]) -> bool:
    """Whether the job has ended, for good."""
    return any(is_true(conditions, each) for each in (ConditionType.COMPLETE, ConditionType.FAILED))


def state(conditions: Sequence[Condition]) -> str:
    """One word: the gravest condition that holds, else Pending, Waiting or Unknown."""
    for each in _PRECEDENCE:
        if is_true(conditions, each):
            return str(each)
    running = find(conditions, ConditionType.RUNNING)
    if running is None:
        return "Pending"
    return "Unknown" if running.status == "Unknown" else "Waiting"


# --- what is true of a job ------------------------------------------------------------------------


def running(status: DDPJobStatus, report: Report | None) -> Condition:
    """Whether the processes of a membership run."""
    kind = ConditionType.RUNNING
    if report is None and status.membership is None:
        text = "waiting for the rendezvous service"
        return condition(kind, False, Reason.RENDEZVOUS_NOT_READY, text)
    if report is None:
        text = "the rendezvous service does not answer; workers that train go on"
        return condition(kind, None, Reason.NO_REPORT, text)
    if report.state is not State.RUNNING or status.membership is None:
        return condition(kind, False, Reason.WAITING, report.reason)
    workers = _plural(len(status.membership.workers), "worker")
    processes = _plural(status.membership.world_size, "process", "es")
    return condition(kind, True, Reason.TRAINING, f"{workers} with {processes}")


def resizing(status: DDPJobStatus, report: Report | None, roster: Roster) -> Condition:
    """Whether a change of the membership is due."""
    kind = ConditionType.RESIZING
    if report is None or report.state is not State.RUNNING or status.membership is None:
        return condition(kind, False, Reason.NOT_RUNNING)
    if roster.draining:
        leaving = ", ".join(worker.name for worker in roster.draining)
        return condition(kind, True, Reason.DRAINING, f"{leaving} must leave")
    members = status.membership.workers
    joining = [w for w in roster.kept if w.placed and w.name not in members]
    if joining:
        return condition(kind, True, Reason.JOINING, report.reason)
    text = _placed(roster)
    whole = not roster.create and not roster.failing and all(w.placed for w in roster.kept)
    return condition(kind, False, Reason.AT_SIZE if whole else Reason.PARTLY_PLACED, text)


def stalled(observed: Observed, report: Report | None, roster: Roster) -> Condition:
    """Whether the job cannot go on unless something outside it changes."""
    kind = ConditionType.STALLED
    if roster.failing and roster.replace_after is not None:
        worker = roster.failing[0]
        text = f"{worker.name} ended before it joined{_words(worker.message)}"
        at = f"; it is replaced at {roster.replace_after:%H:%M:%S} UTC"
        return condition(kind, True, Reason.WORKERS_FAIL, text + at)
    running = report is None or report.state is State.RUNNING
    stuck = [worker for worker in roster.kept if worker.unschedulable]
    minimum = observed.job.spec.minimum
    if stuck and not running and len(roster.kept) + len(roster.create) - len(stuck) < minimum:
        text = f"{_placed(roster)}; at least {minimum} must be placed"
        return condition(kind, True, Reason.TOO_FEW_PLACED, text)
    return condition(kind, False, Reason.NOT_STALLED)


def _placed(roster: Roster) -> str:
    placed = sum(worker.placed for worker in roster.kept)
    total = len(roster.kept) + len(roster.create) + len(roster.failing)
    waiting = [worker for worker in roster.kept if not worker.placed]
    return f"{placed}/{total} placed" + "".join(map(_pending, waiting[:1]))


def _pending(worker: Worker) -> str:
    return f"; {worker.name} is pending{_words(worker.unschedulable or worker.message)}"


def _words(message: str) -> str:
    return f": {message}" if message else ""


def _plural(count: int, word: str, ending: str = "s") -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}{ending}"
