"""Builds the status of a job: counts, the service's report, and conditions.

May not: decide on actions, or remember a fact that can be observed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from ddpjob_operator.api import constants
from ddpjob_operator.api.constants import ConditionType, Reason
from ddpjob_operator.api.spec import DDPJob
from ddpjob_operator.api.status import (
    Condition,
    DDPJobStatus,
    GroupStatus,
    MembershipStatus,
    ProgressStatus,
    RestartsStatus,
    SnapshotStatus,
)
from ddpjob_operator.planner import conditions
from ddpjob_operator.planner.observed import Observed, Phase
from ddpjob_operator.planner.outcome import JobOutcome
from ddpjob_operator.planner.placement import WorkerPlan
from ddpjob_operator.planner.warnings import current_warnings
from ddpjob_protocol.control import FileSyncReport, Report


def build_active_status(
    observed: Observed, report: Report | None, worker_plan: WorkerPlan, now: datetime
) -> DDPJobStatus:
    """Return the status of a job that runs or waits to run."""
    old = observed.job.status
    status = _counted(
        observed,
        {
            **_reported(observed.job, report, now),
            "warnings": current_warnings(observed, report, now),
            "start_time": old.start_time or now,
            "replace_after": worker_plan.replace_after,
        },
    )
    found = (
        conditions.running(observed, status, report),
        conditions.resizing(status, report, worker_plan, observed.rejections),
        conditions.condition(ConditionType.SUSPENDED, False, Reason.NOT_SUSPENDED),
        conditions.stalled(observed, report, worker_plan),
    )
    return _close_conditions(observed, status, found, now)


def build_suspended_status(observed: Observed, now: datetime) -> DDPJobStatus:
    """Return the status of a suspended job; a resumed job starts from its snapshot."""
    cleared = {"start_time": None, "membership": None, "replace_after": None}
    status = _counted(observed, {**cleared, "restarts": RestartsStatus()})
    until = "spec.suspend is false" if observed.job.spec.suspend else "spec.replicas is above 0"
    text = f"the job is suspended; it resumes when {until}"
    found = (
        conditions.condition(ConditionType.RUNNING, False, Reason.SUSPENDED, text),
        conditions.condition(ConditionType.RESIZING, False, Reason.NOT_RUNNING),
        conditions.condition(ConditionType.SUSPENDED, True, Reason.SUSPENDED, text),
        conditions.condition(ConditionType.STALLED, False, Reason.NOT_STALLED),
    )
    return _close_conditions(observed, status, found, now)


def build_finished_status(
    observed: Observed, report: Report | None, verdict: JobOutcome, now: datetime
) -> DDPJobStatus:
    """Return the status of a job that has just completed or failed."""
    status = _counted(
        observed,
        {
            **_reported(observed.job, report, now),
            "warnings": current_warnings(observed, report, now),
            "completion_time": now,
            "replace_after": None,
        },
    )
    found = (
        conditions.condition(ConditionType.RUNNING, False, verdict.reason),
        conditions.condition(ConditionType.RESIZING, False, Reason.NOT_RUNNING),
        conditions.condition(ConditionType.SUSPENDED, False, Reason.NOT_SUSPENDED),
        conditions.condition(ConditionType.STALLED, False, Reason.NOT_STALLED),
        conditions.condition(verdict.type, True, verdict.reason, verdict.message),
    )
    return _close_conditions(observed, status, found, now)


def build_invalid_status(
    old: DDPJobStatus, generation: int, problems: str, now: datetime
) -> DDPJobStatus:
    """Return the status of a job with an invalid spec; only Stalled changes."""
    found = conditions.condition(ConditionType.STALLED, True, Reason.INVALID_SPEC, problems)
    seen = found.model_copy(update={"observed_generation": generation})
    current = conditions.set_condition(old.conditions, seen, now)
    return old.model_copy(update={"conditions": current, "state": conditions.state(current)})


def recount_workers(observed: Observed) -> DDPJobStatus:
    """Return the status of a job that ended earlier, with new counts of the workers."""
    return _counted(observed, {})


def _close_conditions(
    observed: Observed, status: DDPJobStatus, found: Iterable[Condition], now: datetime
) -> DDPJobStatus:
    generation = observed.job.metadata.generation
    current = status.conditions
    for each in found:
        seen = each.model_copy(update={"observed_generation": generation})
        current = conditions.set_condition(current, seen, now)
    return status.model_copy(update={"conditions": current, "state": conditions.state(current)})


# --- counts and reported facts -------------------------------------------------------------------


def _counted(observed: Observed, changes: dict[str, Any]) -> DDPJobStatus:
    job = observed.job
    live = [worker for worker in observed.workers if worker.live]
    groups = tuple(
        GroupStatus(
            name=group.name,
            replicas=group.replicas,
            scheduled=sum(worker.scheduled for worker in live if worker.group == group.name),
            ready=sum(w.phase is Phase.RUNNING for w in live if w.group == group.name),
        )
        for group in job.spec.groups()
    )
    return job.status.model_copy(
        update={
            **changes,
            "observed_generation": job.metadata.generation,
            "groups": groups,
            "ready": f"{sum(g.ready for g in groups)}/{sum(g.replicas for g in groups)}",
            "replicas": sum(worker.group == constants.MAIN_GROUP for worker in live),
            "selector": constants.selector(job.metadata.name),
        }
    )


def _reported(job: DDPJob, report: Report | None, now: datetime) -> dict[str, Any]:
    if report is None:
        return {}
    old = job.status
    failures = max(report.failures, old.restarts.application)
    losses = max(report.losses, old.restarts.infrastructure)
    news: dict[str, Any] = {
        "membership": _membership(old, report, job.spec.resolved_launcher, now),
        "restarts": RestartsStatus(
            application=failures,
            infrastructure=losses,
            total=failures + losses,
            repeated_steps=max(report.repeated_steps, old.restarts.repeated_steps),
        ),
    }
    if report.step is not None:
        metrics = {n: v for n, v in report.metrics.items() if math.isfinite(v)}  # JSON has no NaN
        news["progress"] = ProgressStatus(
            step=report.step, total_steps=report.total_steps, metrics=metrics
        )
    if report.snapshot_step is not None or report.files is not None:
        news["snapshot"] = _snapshot(old.snapshot or SnapshotStatus(), report)
    return news


def _snapshot(old: SnapshotStatus, report: Report) -> SnapshotStatus:
    files = report.files or FileSyncReport()
    kept_at = (
        old.files_synced_at
        if files.synced_at is None
        else datetime.fromtimestamp(files.synced_at, UTC)
    )
    return SnapshotStatus(
        step=old.step if report.snapshot_step is None else report.snapshot_step,
        skipped=report.snapshots_skipped or None,
        files_synced_at=kept_at and kept_at.replace(microsecond=0),
    )


def _membership(
    old: DDPJobStatus, report: Report, launcher: str, now: datetime
) -> MembershipStatus | None:
    new = report.membership
    if new is None:
        return old.membership
    ranks = report.worker_ranks(torchrun=launcher == "torchrun")
    order: dict[str, Any] = {
        "workers": tuple(each.worker for each in ranks or new.members),
        "first_ranks": tuple(each.first for each in ranks),
    }
    if old.membership and old.membership.id == str(new.id):
        return old.membership.model_copy(update=order) if ranks else old.membership
    times = {each.id: datetime.fromtimestamp(each.since, UTC) for each in report.memberships}
    return MembershipStatus(
        id=str(new.id),
        **order,
        world_size=new.world_size,
        since=times.get(str(new.id), now),
        cause=new.cause.value,
    )
