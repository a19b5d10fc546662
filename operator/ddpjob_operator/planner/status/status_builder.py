"""Builds the status of a job: counts, the service's report, and conditions.

May not: decide on actions, or remember a fact that can be observed.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from ddpjob_operator.api import constants
from ddpjob_operator.api.constants import ConditionType, Reason
from ddpjob_operator.api.status import (
    Condition,
    DDPJobStatus,
    GroupStatus,
    MembershipStatus,
    RestartsStatus,
    SnapshotStatus,
)
from ddpjob_operator.planner.failures import bad_nodes
from ddpjob_operator.planner.failures.deaths import Deaths
from ddpjob_operator.planner.observed import Observed, Phase
from ddpjob_operator.planner.outcome import JobOutcome
from ddpjob_operator.planner.placement import WorkerPlan
from ddpjob_operator.planner.status import conditions
from ddpjob_operator.planner.status.stalled import stalled
from ddpjob_operator.planner.status.warnings import current_warnings
from ddpjob_operator.planner.training.history import update_history
from ddpjob_operator.planner.training.progress import build_progress
from ddpjob_protocol.failures.failure_rules import merge_times
from ddpjob_protocol.messages.control import FileSyncReport, Report

AFTER_THE_END = "-"  # in place of the number of workers that run


def build_active_status(
    observed: Observed, report: Report | None, worker_plan: WorkerPlan, now: datetime
) -> DDPJobStatus:
    """Return the status of a job that runs or waits to run."""
    old, policy = observed.job.status, observed.job.spec.failure_policy
    avoided = bad_nodes.why_pending(worker_plan.stuck, worker_plan.deaths.nodes, policy)
    status = _counted(
        observed,
        {
            **_reported(observed, report, now),
            "warnings": current_warnings(observed, report, now, avoided=avoided),
            "worker_failures": worker_plan.deaths.slots,
            "node_failures": worker_plan.deaths.nodes,
            "start_time": old.start_time or _whole(now),
            "replace_after": worker_plan.replace_after,
        },
    )
    found = (
        conditions.running(observed, status, report),
        conditions.resizing(observed, status, report, worker_plan, now),
        stalled(observed, report, worker_plan, now),
    )
    return _close_conditions(observed, status, found, now)


def build_suspended_status(observed: Observed, now: datetime) -> DDPJobStatus:
    """Return the status of a suspended job; a resumed job starts from its snapshot."""
    cleared: dict[str, Any] = {"start_time": None, "membership": None, "replace_after": None}
    cleared |= {
        "rendezvous_failures": None,
        "silent_workers": (),
        "worker_failures": (),
        "node_failures": (),
    }
    status = _counted(observed, {**cleared, "restarts": RestartsStatus()})
    until = "spec.suspend is false" if observed.job.spec.suspend else "spec.replicas is above 0"
    text = f"the job is suspended; it resumes when {until}"
    found = (
        conditions.condition(ConditionType.RUNNING, False, Reason.SUSPENDED, text),
        conditions.condition(ConditionType.SUSPENDED, True, Reason.SUSPENDED, text),
    )
    return _close_conditions(observed, status, found, now)


def build_finished_status(
    observed: Observed,
    report: Report | None,
    verdict: JobOutcome,
    ended: Deaths,
    now: datetime,
) -> DDPJobStatus:
    """Return the status of a job that has just completed or failed."""
    status = _counted(
        observed,
        {
            **_reported(observed, report, now),
            "warnings": current_warnings(observed, report, now),
            "worker_failures": ended.slots,
            "node_failures": ended.nodes,
            "completion_time": _whole(now),
            "replace_after": None,
            "ready": AFTER_THE_END,
        },
    )
    found = (
        conditions.condition(ConditionType.RUNNING, False, verdict.reason),
        conditions.condition(verdict.type, True, verdict.reason, verdict.message),
    )
    return _close_conditions(observed, status, found, now)


def build_invalid_status(
    old: DDPJobStatus, generation: int, problems: str, now: datetime
) -> DDPJobStatus:
    """Return the status of a job with an invalid spec; only Stalled changes."""
    found = conditions.condition(ConditionType.STALLED, True, Reason.INVALID_SPEC, problems)
    seen = found.model_copy(update={"observed_generation": generation})
    current = conditions.set_condition(old.conditions, seen, _whole(now))
    return old.model_copy(update=_summary(current))


def recount_workers(observed: Observed) -> DDPJobStatus:
    """Return the status of a job that ended earlier, with new counts of the workers."""
    return _counted(observed, {"ready": AFTER_THE_END})


def _close_conditions(
    observed: Observed, status: DDPJobStatus, found: Iterable[Condition | None], now: datetime
) -> DDPJobStatus:
    """Replace all conditions by the found ones; None does not hold and has nothing to report."""
    generation = observed.job.metadata.generation
    seen = (each.model_copy(update={"observed_generation": generation}) for each in found if each)
    dated = tuple(conditions.date(status.conditions, each, _whole(now)) for each in seen)
    return status.model_copy(update=_summary(dated))


def _summary(current: tuple[Condition, ...]) -> dict[str, Any]:
    return {
        "conditions": current,
        "state": conditions.state(current),
        "message": conditions.message(current),
    }


def _whole(moment: datetime) -> datetime:
    """Return a time in whole seconds, as in all times of the API server."""
    return moment.replace(microsecond=0)


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
            "ready": f"{sum(g.ready for g in groups)}/{sum(g.replicas for g in groups)}",
            **changes,
            "observed_generation": job.metadata.generation,
            "groups": groups,
            "replicas": sum(worker.group == constants.MAIN_GROUP for worker in live),
            "selector": constants.selector(job.metadata.name),
        }
    )


def _reported(observed: Observed, report: Report | None, now: datetime) -> dict[str, Any]:
    job, old = observed.job, observed.job.status
    history = update_history(old, report, observed.workers)
    recent = _recent_failures(observed, report, now)
    if report is None:
        restarts = old.restarts.model_copy(update={"recent": recent})
        return {"history": history, "restarts": restarts}
    failures = max(report.failures, old.restarts.application)
    losses = max(report.losses, old.restarts.infrastructure)
    news: dict[str, Any] = {
        "membership": _membership(old, report, job.spec.resolved_launcher, now),
        "history": history,
        "restarts": RestartsStatus(
            application=failures,
            infrastructure=losses,
            total=failures + losses,
            recent=recent,
            repeated_steps=max(report.repeated_steps, old.restarts.repeated_steps),
        ),
    }
    if report.step is not None:
        news["progress"] = build_progress(report)
    if report.snapshot_step is not None or report.files is not None:
        news["snapshot"] = _snapshot(old.snapshot or SnapshotStatus(), report)
    return news


def _recent_failures(
    observed: Observed, report: Report | None, now: datetime
) -> tuple[datetime, ...]:
    """Return the times of the failures within the window of the budget; none without a window."""
    window = observed.job.spec.failure_policy.window_seconds
    if window is None:
        return ()
    known = [int(at.timestamp()) for at in observed.job.status.restarts.recent]
    times = merge_times(known, report.failure_times if report else ())
    return tuple(datetime.fromtimestamp(at, UTC) for at in times if at > now.timestamp() - window)


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
    times = {each.id: datetime.fromtimestamp(int(each.since), UTC) for each in report.memberships}
    return MembershipStatus(
        id=str(new.id),
        **order,
        world_size=new.world_size,
        since=times.get(str(new.id), _whole(now)),
        cause=new.cause.value,
    )
