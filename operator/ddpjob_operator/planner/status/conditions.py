"""The conditions of an active job, their transitions, and the one-word state.

May not: decide on actions, or read a condition instead of an observation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Literal

from ddpjob_operator.api.constants import ConditionType, Reason
from ddpjob_operator.api.status import Condition, DDPJobStatus
from ddpjob_operator.planner.failures import moves
from ddpjob_operator.planner.failures.diagnosis import diagnose, quote
from ddpjob_operator.planner.observed import Observed, Rejection, Worker
from ddpjob_operator.planner.placement import WorkerPlan
from ddpjob_operator.planner.silence import silent_workers
from ddpjob_operator.planner.silence.silent_service import silent_service
from ddpjob_operator.planner.status.warnings import describe
from ddpjob_protocol.messages.control import Report, ServiceState
from ddpjob_protocol.text import plural, shorten, some

_PRECEDENCE = (
    ConditionType.FAILED,
    ConditionType.COMPLETE,
    ConditionType.SUSPENDED,
    ConditionType.STALLED,
    ConditionType.RESIZING,
    ConditionType.RUNNING,
)
STATES = (*(str(each) for each in _PRECEDENCE), "Pending", "Waiting", "Unknown")
_WITH_REASON = (ConditionType.FAILED, ConditionType.STALLED, ConditionType.RESIZING)
AT_REST = "running"  # reason of a service that waits for nothing
MAX_NAMES = 5  # of rejected objects in a message; the others are counted
MAX_MESSAGE = 300  # characters of the explanation of the state


def condition(
    type_: ConditionType,
    holds: bool | None,
    reason: Reason,
    message: str = "",
) -> Condition:
    """Return a condition without its time; if `holds` is None, the status is Unknown."""
    status: Literal["True", "False", "Unknown"]
    status = "Unknown" if holds is None else "True" if holds else "False"
    return Condition(type=type_.value, status=status, reason=reason.value, message=message)


def set_condition(
    conditions: Sequence[Condition], new: Condition, now: datetime
) -> tuple[Condition, ...]:
    """Insert or replace a condition; its time changes only if its status changes."""
    dated = date(conditions, new, now)
    if find(conditions, new.type) is None:
        return (*conditions, dated)
    return tuple(dated if each.type == new.type else each for each in conditions)


def date(conditions: Sequence[Condition], new: Condition, now: datetime) -> Condition:
    """Return a condition with the time of the last change of its status."""
    old = find(conditions, new.type)
    same = old is not None and old.status == new.status
    since = old.last_transition_time if old is not None and same else now
    return new.model_copy(update={"last_transition_time": since})


def find(conditions: Sequence[Condition], type_: str) -> Condition | None:
    """Return the condition of a type, or None."""
    return next((each for each in conditions if each.type == type_), None)


def is_true(conditions: Sequence[Condition], type_: str) -> bool:
    """Return whether the condition exists with status True."""
    condition = find(conditions, type_)
    return condition is not None and condition.status == "True"


def finished(conditions: Sequence[Condition]) -> bool:
    """Return whether the job has completed or failed."""
    return any(is_true(conditions, each) for each in (ConditionType.COMPLETE, ConditionType.FAILED))


def state(conditions: Sequence[Condition]) -> str:
    """Return the first true condition by precedence, else Pending, Waiting or Unknown."""
    for each in _PRECEDENCE:
        if is_true(conditions, each):
            return str(each)
    running = find(conditions, ConditionType.RUNNING)
    if running is None:
        return "Pending"
    return "Unknown" if running.status == "Unknown" else "Waiting"


def message(conditions: Sequence[Condition]) -> str:
    """Return the explanation of the state in one line."""
    word = state(conditions)
    found = find(conditions, word) or find(conditions, ConditionType.RUNNING)
    if found is None or not found.message:
        return ""
    line = shorten(found.message.splitlines()[0], MAX_MESSAGE)
    return f"{found.reason}: {line}" if word in _WITH_REASON else line


# --- the conditions of a job ----------------------------------------------------------------------


def running(observed: Observed, status: DDPJobStatus, report: Report | None) -> Condition:
    """Return Running: the processes of a membership run."""
    kind = ConditionType.RUNNING
    if report is None and status.membership is None:
        text = "waiting for the rendezvous service"
        if observed.rendezvous is not None:
            text += plain_message(observed.rendezvous.message or observed.rendezvous.reason)
        if silent := silent_service(observed):
            text += plain_message(silent.error)
        return condition(kind, False, Reason.RENDEZVOUS_NOT_READY, text)
    if report is None:
        why = plain_message(observed.silence.error) if observed.silence else ""
        text = f"the rendezvous service does not answer{why}; training workers continue"
        return condition(kind, None, Reason.NO_REPORT, text)
    if report.state is not ServiceState.RUNNING or status.membership is None:
        return condition(kind, False, Reason.WAITING, report.reason)
    workers = plural(len(status.membership.workers), "worker")
    processes = plural(status.membership.world_size, "process")
    parts = (
        f"{workers} with {processes}",
        storage_not_shared(observed),
        describe(status.warnings),
    )
    return condition(kind, True, Reason.TRAINING, "; ".join(filter(None, parts)))


def resizing(
    observed: Observed,
    status: DDPJobStatus,
    report: Report | None,
    worker_plan: WorkerPlan,
    now: datetime,
) -> Condition | None:
    """Return Resizing: the membership has to change; None without a membership."""
    kind, rejections = ConditionType.RESIZING, observed.rejections
    if report is None or report.state is not ServiceState.RUNNING or status.membership is None:
        return None
    unheard = silent_workers.told(observed, now)
    if worker_plan.draining and not unheard.keys() >= {w.name for w in worker_plan.draining}:
        leaving = ", ".join(worker.name for worker in worker_plan.draining)
        return condition(kind, True, Reason.DRAINING, f"{leaving} must leave")
    members = status.membership.workers
    short = _below_minimum(len(members), observed.job.spec.minimum)
    joining = [w for w in worker_plan.kept if starts(w) and w.name not in members]
    if joining:
        reason = next((unheard[w.name] for w in joining if w.name in unheard), Reason.JOINING)
        text = _joining(observed, [w for w in joining if w.name in unheard] or joining, report, now)
        return condition(kind, True, reason, "; ".join((*short, text)))
    refused = [rejected(rejections, each) for each in rejections[:1]]
    text = "; ".join((*short, placed(worker_plan), *_held(worker_plan), *refused))
    incomplete = worker_plan.create or worker_plan.failing or worker_plan.held
    whole = not incomplete and all(map(starts, worker_plan.kept))
    reason = Reason.AT_SIZE if whole else Reason.PARTLY_PLACED
    if any(worker.gates for worker in worker_plan.kept):
        reason = Reason.GATED
    return condition(kind, False, reason, text)


def _joining(observed: Observed, joining: Sequence[Worker], report: Report, now: datetime) -> str:
    """Return why workers have not joined; the word for a service at rest is not one."""
    if joining[0].name in silent_workers.told(observed, now):
        return "; ".join(f"{w.name}: {silent_workers.describe(observed, w, now)}" for w in joining)
    names = some([worker.name for worker in joining], MAX_NAMES)
    return f"waits for {names}" if report.reason == AT_REST else report.reason


def _held(worker_plan: WorkerPlan) -> Iterator[str]:
    """Yield why workers are still on avoided nodes."""
    if worker_plan.held:
        more = len(worker_plan.held) - 1
        others = f", and {plural(more, 'other worker')} alike" if more else ""
        why = moves.describe(worker_plan.held[0])
        yield f"{why}; it stays until its successor has registered{others}"


def _below_minimum(members: int, minimum: int) -> Iterator[str]:
    """Yield a warning if a membership has fewer workers than a minimum that was raised since."""
    if members < minimum:
        yield f"{members} train, below the new minimum of {minimum}: the next loss stops the job"


def storage_not_shared(observed: Observed) -> str:
    """Return a warning if several nodes hold workers but only one node can use the claim."""
    claim = observed.single_node_claim
    if not claim or len({w.node for w in observed.workers if w.live and w.node}) < 2:
        return ""
    text = f"the workers are on several nodes, but only one node can use claim '{claim}'"
    return f"{text}; use a claim with access mode ReadWriteMany"


def rejected(rejections: Sequence[Rejection], first: Rejection) -> str:
    """Return the message of a rejection, and the names of the others with the same reason."""
    text = first.message
    if first.reason in (Reason.POD_REFUSED, Reason.QUOTA_EXCEEDED):  # the others name the object
        text = f"{first.name} was refused: {text}"
    others = [each.name for each in rejections if each.reason is first.reason and each != first]
    return f"{text}; the same holds for {some(others, MAX_NAMES)}" if others else text


def placed(worker_plan: WorkerPlan) -> str:
    """Return how many workers have a node, and why the first of the others waits."""
    count = sum(worker.scheduled for worker in worker_plan.kept)
    total = len(worker_plan.kept) + len(worker_plan.coming) + len(worker_plan.failing)
    chosen = (*worker_plan.kept, *worker_plan.successors)
    waiting = [worker for worker in chosen if not starts(worker)]
    return f"{count}/{total} placed" + "".join(map(_pending, waiting[:1]))


def starts(worker: Worker) -> bool:
    """Return whether a worker has a node and no known problem prevents its start."""
    return worker.scheduled and diagnose(worker.reason, worker.message) is None


def _pending(worker: Worker) -> str:
    return f"; {worker.name} is pending{plain_message(worker.message or worker.unschedulable or worker.reason)}"


def plain_message(message: str) -> str:
    """Return the last line of a message after a colon; empty without a message."""
    text = quote(message)
    return f": {text}" if text else ""
