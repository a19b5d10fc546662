"""The policy of the operator as one pure function from an observation to a plan.

Theory of operation. A pass observes, plans, executes the actions in their order, sends the
expectation, writes the status, then emits the events. If a pass dies at any point, the next pass
observes again and reaches the same result. Three facts cannot be observed. One pass writes each of
them to the status, and the next pass acts on it:

- The term of the rendezvous service, before the service is created. Once a service was observed
  and its term recorded, the operator sends the expected workers. Without them, the service forms
  no membership. Every service that formed a membership was therefore recorded, and its successor
  has a higher term.
- The image of the agent, before the first pod is created. All pods of a job have one version of
  the agent, also if another version of the operator replaces some of them.
- The end of the job, before the service that reported the end is deleted. A finished job stays
  finished.

If the API server rejects a child, the pass plans a second time with the rejections as input. The
status reports the rejections, and the expectation omits the rejected workers.

May not: read a clock, perform an action, or keep anything between two calls.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from datetime import datetime

from ddpjob_operator.api.constants import ConditionType
from ddpjob_operator.api.status import DDPJobStatus
from ddpjob_operator.planner import outcome, rendezvous
from ddpjob_operator.planner.actions import (
    Action,
    CreateNetworkPolicy,
    CreateService,
    DeleteJob,
    DeleteWorker,
    Event,
)
from ddpjob_operator.planner.failures import deaths
from ddpjob_operator.planner.observed import Observed, Phase
from ddpjob_operator.planner.placement import WorkerPlan, plan_workers
from ddpjob_operator.planner.silence import silent_workers, takeover
from ddpjob_operator.planner.silence.silent_service import seconds_until_expiry
from ddpjob_operator.planner.status import conditions, events, status_builder
from ddpjob_operator.planner.status.storage_warnings import not_shared_at
from ddpjob_operator.planner.status.warnings import new_warning_events
from ddpjob_protocol.messages.control import Expectation, Report

END_SECONDS = 30.0  # time for the workers of a finished job to end, if their pods are kept


@dataclasses.dataclass(frozen=True)
class Plan:
    """The work of one pass: actions in their order, then expectation, status and events."""

    actions: tuple[Action, ...]
    status: DDPJobStatus
    events: tuple[Event, ...] = ()
    expectation: Expectation | None = None  # None: the pass sends none
    requeue_after: float | None = None  # seconds until the next pass, even without a change


def plan(observed: Observed, now: datetime) -> Plan:
    """Return the actions, status and events for an observation."""
    job, status = observed.job, observed.job.status
    if job.metadata.deletion_timestamp is not None:
        return Plan(tuple(_remove_all(observed)) if job.metadata.is_held else (), status)
    if conditions.finished(status.conditions):
        return _plan_finished(observed, now)
    report = rendezvous.current_report(observed)
    ended = deaths.count_failures(observed, now)
    verdict = outcome.decide_outcome(observed, report, ended, now)
    complete = verdict is not None and verdict.type is ConditionType.COMPLETE
    if job.spec.paused and not complete:
        return _plan_suspended(observed, now)
    if verdict is not None:
        final = status_builder.build_finished_status(observed, report, verdict, ended, now)
        new_events = (
            *events.membership_events(observed, report),
            *new_warning_events(observed, final),
            events.end_event(verdict),
        )
        return Plan((), final, new_events, requeue_after=0)
    return _plan_active(observed, report, ended, now)


def _plan_active(
    observed: Observed, report: Report | None, ended: deaths.Deaths, now: datetime
) -> Plan:
    observed = dataclasses.replace(observed, report=report)
    worker_plan = plan_workers(observed, ended, now)
    status = status_builder.build_active_status(observed, report, worker_plan, now)
    term, noticed = rendezvous.next_term(observed)
    failures = takeover.update_failures(observed, now)
    image = _agent_image(observed)
    status = status.model_copy(
        update={
            "rendezvous_term": term,
            "observed_rendezvous_term": noticed,
            "rendezvous_failures": failures,
            "silent_workers": silent_workers.silent_workers(observed, now),
            "agent_image": image,
        }
    )
    old = observed.job.status
    if old.rendezvous_term == 0 or old.agent_image != image:
        return Plan((), status, requeue_after=0)
    actions = (
        *_service_actions(observed),
        *rendezvous.replace_rendezvous(observed, failures, ended.avoided),
        *worker_plan.create,
        *worker_plan.delete,
    )
    new_events = (
        *events.membership_events(observed, report),
        *events.repeated_step_events(observed, report),
        *new_warning_events(observed, status),
        *events.replacement_events(observed, worker_plan),
        *takeover.takeover_event(observed, failures),
        *events.change_events(observed, status),
        *events.progress_events(observed, status, report, now),
    )
    return Plan(
        actions,
        status,
        new_events,
        expectation=_expectation(observed, worker_plan),
        requeue_after=_requeue_after(observed, status, worker_plan, now),
    )


def _plan_suspended(observed: Observed, now: datetime) -> Plan:
    status = status_builder.build_suspended_status(observed, now)
    new_events = tuple(events.change_events(observed, status))
    return Plan(tuple(_remove_all(observed)), status, new_events)


def _plan_finished(observed: Observed, now: datetime) -> Plan:
    """Clean up after a finished job; once its time to live is over, delete the job itself."""
    expiry, planned = outcome.expiry_of(observed.job), _plan_cleanup(observed, now)
    if expiry is None:
        return planned
    left = (expiry - now).total_seconds()
    if left <= 0:
        return dataclasses.replace(planned, actions=(*planned.actions, DeleteJob()))
    after = left if planned.requeue_after is None else min(left, planned.requeue_after)
    return dataclasses.replace(planned, requeue_after=after)


def _plan_cleanup(observed: Observed, now: datetime) -> Plan:
    """Delete the pods that a finished job does not keep; kept pods get END_SECONDS to end.

    A pod with a sidecar that still runs is not kept, because it holds its GPUs.
    """
    job = observed.job
    failed = conditions.is_true(job.status.conditions, ConditionType.FAILED)
    kept = {"All": tuple(Phase), "Failed": (Phase.FAILED,), "Never": ()}[job.spec.keep_pods]
    may_stay = job.spec.keep_pods == "All" or (job.spec.keep_pods == "Failed" and failed)
    since = job.status.completion_time or now
    left = END_SECONDS - (now - since).total_seconds() if may_stay else 0.0
    status = status_builder.recount_workers(observed)
    running = (w for w in observed.workers if not w.deleting)
    waiting = [w for w in running if w.phase is Phase.RUNNING or w.sidecars_left]
    if left > 0 and waiting:
        ended = [w for w in observed.workers if w.phase is Phase.PENDING and not w.deleting]
        return Plan(tuple(DeleteWorker(w.name) for w in ended), status, requeue_after=left)
    held = {w.name for w in observed.workers if w.phase in kept and w.sidecars_left}
    kept_names = {w.name for w in observed.workers if w.terminal and w.phase in kept} - held
    gone = [w for w in observed.workers if not w.deleting and w.name not in kept_names]
    actions = (*(DeleteWorker(w.name) for w in gone), *rendezvous.remove_rendezvous(observed))
    lost = events.not_kept_events([w.name for w in gone if w.name in held], END_SECONDS)
    return Plan(actions, status, tuple(lost))


def _remove_all(observed: Observed) -> Iterator[Action]:
    """Delete the workers; delete the service after the last of them has ended.

    The workers need the service to agree on their last step.
    """
    for worker in observed.workers:
        if not worker.deleting:
            yield DeleteWorker(worker.name)
    if all(worker.terminal for worker in observed.workers):
        yield from rendezvous.remove_rendezvous(observed)


def _agent_image(observed: Observed) -> str:
    """Return the image for all pods of the job: agents and service must be of one version."""
    known = observed.job.status.agent_image
    has_pods = observed.workers or observed.rendezvous or observed.terminated_terms
    return known if known and has_pods else observed.agent_image


def _service_actions(observed: Observed) -> Iterator[Action]:
    if not observed.network_policy:
        yield CreateNetworkPolicy()
    if not observed.service:
        yield CreateService()


def _expectation(observed: Observed, worker_plan: WorkerPlan) -> Expectation | None:
    seen, status = observed.rendezvous, observed.job.status
    recorded = status.rendezvous_term == status.observed_rendezvous_term
    if seen is None or not seen.ready or not recorded or seen.term != status.rendezvous_term:
        return None
    stay = [w.name for w in worker_plan.kept if w.name not in worker_plan.stuck_names]
    refused = {refusal.name for refusal in observed.rejections}
    come = [action.name for action in worker_plan.coming if action.name not in refused]
    leaving = [worker for worker in observed.workers if worker.deleting and not worker.terminal]
    go = {worker.name for worker in (*worker_plan.draining, *leaving)}
    return Expectation(
        workers=tuple(sorted(stay + come)),
        draining=tuple(sorted(go)),
        policy=observed.job.policy(),
        failures=status.restarts.application,
        failure_times=tuple(int(at.timestamp()) for at in status.restarts.recent),
    )


def _requeue_after(
    observed: Observed, status: DDPJobStatus, worker_plan: WorkerPlan, now: datetime
) -> float | None:
    old = observed.job.status
    before = (old.rendezvous_term, old.observed_rendezvous_term)
    if before != (status.rendezvous_term, status.observed_rendezvous_term):
        return 0
    silent = not_shared_at(observed, observed.report)
    coming = silent if silent is not None and silent > now else None
    times = [outcome.deadline_of(observed.job), status.replace_after, worker_plan.stuck_at, coming]
    times += (at for at in silent_workers.next_times(observed, now) if at > now)
    seconds = [max(0.0, (at - now).total_seconds()) for at in times if at]
    seconds += filter(None, (
        seconds_until_expiry(observed), takeover.seconds_until_takeover(observed, now),
    ))  # fmt: skip
    return min(seconds, default=None)
