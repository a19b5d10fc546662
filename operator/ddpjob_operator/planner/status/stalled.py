"""The condition Stalled: what keeps a job from progress, or from a start by waiting alone.

May not: decide on actions.
"""

from __future__ import annotations

from datetime import datetime

from ddpjob_operator.api import constants
from ddpjob_operator.api.constants import ConditionType, Reason
from ddpjob_operator.api.status import Condition
from ddpjob_operator.planner.failures import deaths
from ddpjob_operator.planner.failures.diagnosis import diagnose, remedy_text
from ddpjob_operator.planner.observed import Observed, Worker
from ddpjob_operator.planner.placement import WorkerPlan
from ddpjob_operator.planner.silence import silent_workers
from ddpjob_operator.planner.silence.silent_service import (
    service_does_not_start,
    service_unreachable,
)
from ddpjob_operator.planner.status.conditions import (
    condition,
    placed,
    plain_message,
    rejected,
    storage_not_shared,
)
from ddpjob_operator.planner.status.stall_message import describe_stall
from ddpjob_protocol.messages.control import Report, ServiceState


def stalled(
    observed: Observed, report: Report | None, worker_plan: WorkerPlan, now: datetime
) -> Condition | None:
    """Return Stalled: the job makes no progress, or needs a change from outside to start."""
    kind = ConditionType.STALLED
    trains = report is not None and report.state is ServiceState.RUNNING
    found = _without_service(observed, now, trains=trains)
    if report is not None and report.stall is not None and found is None:
        restarts = observed.job.spec.failure_policy.restarts_on_hang
        text = describe_stall(report.stall, restarts=restarts)
        return condition(kind, True, Reason.NO_PROGRESS, text)
    if worker_plan.failing and worker_plan.replace_after is not None:
        counted = {each.worker: each for each in worker_plan.deaths.slots}
        worker = min(worker_plan.failing, key=lambda each: counted[each.name].retry_at)
        diagnosis = diagnose(worker.reason, worker.message)
        text = deaths.describe(worker, counted[worker.name])
        at = f"; it is replaced at {worker_plan.replace_after:%H:%M:%S} UTC"
        reason = diagnosis.reason if diagnosis else Reason.WORKERS_FAIL
        return condition(kind, True, reason, f"{text}{remedy_text(diagnosis)}{at}")
    last_known = report is None and observed.job.status.membership is not None
    if not trains and not last_known:
        found = found or _obstacle(observed, worker_plan, now)
    return found


def _without_service(observed: Observed, now: datetime, *, trains: bool) -> Condition | None:
    """Return Stalled without a service; a job that trains needs no Service object any more."""
    kind, job = ConditionType.STALLED, observed.job
    term, name = job.status.rendezvous_term, job.metadata.name
    pod_name = constants.rendezvous_name(name, term)
    vital = (pod_name,) if trains else (constants.service_name(name), pod_name)
    for refusal in observed.rejections:
        if refusal.name in vital:
            return condition(kind, True, refusal.reason, rejected(observed.rejections, refusal))
    pod = observed.rendezvous
    diagnosis = diagnose(pod.reason, pod.message) if pod and not pod.ready else None
    if pod is None or diagnosis is None:
        return service_unreachable(observed) or service_does_not_start(observed, now)
    text = f"the rendezvous service cannot start{plain_message(pod.message or pod.reason)}"
    return condition(kind, True, diagnosis.reason, text + remedy_text(diagnosis))


def _obstacle(observed: Observed, worker_plan: WorkerPlan, now: datetime) -> Condition | None:
    """Return Stalled if the job cannot start or restart by waiting alone, or None."""
    kind = ConditionType.STALLED
    for refusal in observed.rejections:
        return condition(kind, True, refusal.reason, rejected(observed.rejections, refusal))
    unheard = silent_workers.told(observed, now)
    stuck = [
        w
        for w in worker_plan.kept
        if w.name in worker_plan.stuck_names or _cannot_start(w) or w.name in unheard
    ]
    minimum = observed.job.spec.minimum
    if len(worker_plan.kept) + len(worker_plan.coming) - len(stuck) >= minimum or not stuck:
        text = storage_not_shared(observed)
        return condition(kind, True, Reason.VOLUME_NOT_SHARED, text) if text else None
    worker = stuck[0]
    if worker.name in unheard:
        text = f"{worker.name}: {silent_workers.describe(observed, worker, now)}"
        return condition(kind, True, unheard[worker.name], text)
    if worker.gates:
        text = f"{placed(worker_plan)}; at least {minimum} must be placed; the queue or the"
        return condition(
            kind, True, Reason.GATED, f"{text} controller of the gates admits the pods"
        )
    diagnosis = diagnose(worker.reason, worker.message)
    if worker.unschedulable and diagnosis is None:
        text = f"{placed(worker_plan)}; at least {minimum} must be placed"
        return condition(kind, True, Reason.TOO_FEW_PLACED, text)
    reason = diagnosis.reason if diagnosis else Reason.TOO_FEW_PLACED
    text = f"{worker.name} cannot start{plain_message(worker.message or worker.reason)}"
    return condition(kind, True, reason, text + remedy_text(diagnosis))


def _cannot_start(worker: Worker) -> bool:
    return not worker.unschedulable and diagnose(worker.reason, worker.message) is not None
