"""Counts the workers of a slot that ended by their own doing, one after the other.

A pod that was deleted, preempted or evicted for the sake of its node did nothing. One that ran out of
memory or of its disk limit, or whose agent ended with an error, most likely ends again: its successor
waits for a backoff, and the job fails once a slot has used up the budget of the application. A worker
that ended before it joined has only the backoff, because a correction of image or command repairs it.
The rules of the failure policy come first: by them an end costs nothing of the budget, a preemption
counts, or the job fails at once.
May not: decide which workers to create.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from ddpjob_operator.api.constants import Reason
from ddpjob_operator.api.status import NodeFailures, WorkerFailures
from ddpjob_operator.planner.failures import bad_nodes
from ddpjob_operator.planner.failures.diagnosis import LOCAL_DISK, diagnose, quote, remedy_text
from ddpjob_operator.planner.joined import joined_ever
from ddpjob_operator.planner.observed import Observed, Phase, Worker
from ddpjob_protocol.exit_codes import Exit
from ddpjob_protocol.failures.failure_rules import (
    MAX_TIMES,
    FailureReason,
    FailureRule,
    RuleAction,
    action_of,
    count_since,
)
from ddpjob_protocol.text import last_lines, plural

CALM_SECONDS = 600.0  # since the last failure; then the count of a slot begins again
MAX_PAUSE_SECONDS = 300.0
MAX_SLOTS = 500
MAX_TAILS = 5  # slots whose last words the status keeps
MAX_TAIL = 1000  # characters
MAX_TIMES_OF_ALL = 1000  # times of failures that the status keeps
LOST_BY_NODE = ("ContainerStatusUnknown", "NodeLost", "NodeShutdown", "Terminated", "Unknown")
# Reasons of the kubelet, and of the condition DisruptionTarget.
_REASONS = {
    "Evicted": FailureReason.EVICTED,
    "EvictionByEvictionAPI": FailureReason.EVICTED,
    "TerminationByKubelet": FailureReason.EVICTED,
    "Preempting": FailureReason.PREEMPTED,
    "PreemptionByScheduler": FailureReason.PREEMPTED,
    "DeletionByTaintManager": FailureReason.NODE_LOST,
    "DeletionByPodGC": FailureReason.NODE_LOST,
    **dict.fromkeys(LOST_BY_NODE, FailureReason.NODE_LOST),
}
_DIAGNOSED = {
    Reason.OUT_OF_MEMORY: FailureReason.OUT_OF_MEMORY,
    Reason.DISK_LIMIT: FailureReason.DISK_LIMIT,
}


def own_doing(worker: Worker) -> bool:
    """Return whether the pod of a worker ended by its own doing."""
    if worker.phase is not Phase.FAILED:
        return False
    if worker.reason == "Evicted":
        return re.search(LOCAL_DISK, worker.message) is not None
    if worker.deleting or worker.disrupted or worker.reason in LOST_BY_NODE:
        return False
    return worker.exit_code not in (None, Exit.OK, Exit.STOPPED)


@dataclasses.dataclass(frozen=True)
class Deaths:
    """The failures of workers, by slot and by node; the newest come last."""

    slots: tuple[WorkerFailures, ...] = ()
    nodes: tuple[NodeFailures, ...] = ()

    @functools.cached_property
    def avoided(self) -> tuple[str, ...]:
        """The nodes that new pods avoid."""
        return bad_nodes.avoided(self.nodes)


def count_failures(observed: Observed, now: datetime) -> Deaths:
    """Return the failures for the status: those that it has, and those of this pass."""
    counts = {(each.group, each.index): each for each in observed.job.status.worker_failures}
    found = _judged(observed)
    new = list[Worker]()
    for worker, action in found:
        slot = (worker.group, worker.index)
        known = counts.get(slot)
        if known is None or known.worker != worker.name:
            counts[slot] = _counted(observed, worker, known, action, now)
            of_node = worker.disrupted or worker.reason in LOST_BY_NODE
            if action == RuleAction.COUNT and not of_node:
                new.append(worker)
    failed = {worker.name for worker, _ in found}
    wanted = {group.name for group in observed.job.spec.groups()}
    policy = observed.job.spec.failure_policy
    calm = now - timedelta(seconds=max(CALM_SECONDS, policy.window_seconds or 0.0))
    kept = [e for e in counts.values() if e.group in wanted and (e.at > calm or e.worker in failed)]
    slots = _bounded(sorted(kept, key=lambda each: each.at)[-MAX_SLOTS:])
    processes = bad_nodes.failed_processes(observed.workers, observed.report)
    earlier, alive = observed.job.status.node_failures, {w.name for w in observed.workers if w.live}
    nodes = bad_nodes.count_nodes(earlier, new, processes, policy, now, alive)
    return Deaths(slots, nodes)


def _bounded(kept: Sequence[WorkerFailures]) -> tuple[WorkerFailures, ...]:
    """Drop the oldest last words and times."""
    room, found = MAX_TIMES_OF_ALL, list[WorkerFailures]()
    for at, each in enumerate(reversed(kept)):
        times = each.times[-room:] if room else ()
        room -= len(times)
        tail = each.tail if at < MAX_TAILS else ""
        found.append(each.model_copy(update={"tail": tail, "times": times}))
    return tuple(reversed(found))


def paused(
    failures: Iterable[WorkerFailures], now: datetime
) -> dict[tuple[str, int], WorkerFailures]:
    """Return the slots whose replacements wait for the end of their backoff.

    A backoff longer than the longest was written before the clock was set back: it is over.
    """
    latest = now + timedelta(seconds=MAX_PAUSE_SECONDS + 1)
    return {(e.group, e.index): e for e in failures if now < e.retry_at <= latest}


def fatal(
    observed: Observed, failures: Sequence[WorkerFailures], now: datetime
) -> tuple[Reason, str] | None:
    """Return reason and message of the failed job: by a rule, or because a budget is used up."""
    policy = observed.job.spec.failure_policy
    most, window = policy.max_restarts.application, policy.window_seconds
    joined = joined_ever(observed.job, observed.report)
    counted = {each.worker: each for each in failures}
    for worker, action in _judged(observed):
        each = counted.get(worker.name)
        if each is None:
            continue
        why = ""
        if action == RuleAction.FAIL_JOB:
            why = "failurePolicy.rules: FailJob"
        elif _spent(each, window, now) > most and worker.name in joined:
            why = f"maxRestarts.application: {most}" if action == RuleAction.COUNT else ""
        if why:
            text = f"{describe(worker, each)} ({why})"
            return Reason(each.reason), text + remedy_text(diagnose(worker.reason, worker.message))
    return None


def describe(worker: Worker, failures: WorkerFailures) -> str:
    """Return how often a worker has ended, and how the last time."""
    kind = "" if worker.reason == "Error" else worker.reason
    words = ", ".join(filter(None, (kind, quote(worker.message))))
    like = f" like {plural(failures.count - 1, 'worker')} before it" if failures.count > 1 else ""
    return f"{worker.name} ended{like}" + (f": {words}" if words else "")


def _judged(observed: Observed) -> list[tuple[Worker, str]]:
    """Return the newest worker of each slot whose end is a failure, with the action for it."""
    newest: dict[tuple[str, int], Worker] = {}
    for worker in observed.workers:
        slot = (worker.group, worker.index)
        if slot not in newest or newest[slot].incarnation < worker.incarnation:
            newest[slot] = worker
    joined = joined_ever(observed.job, observed.report)
    rules = [rule.to_protocol() for rule in observed.job.spec.failure_policy.rules]
    ended = (w for w in newest.values() if w.phase is Phase.FAILED and not observed.is_outdated(w))
    judged = ((worker, _action(worker, rules, worker.name in joined)) for worker in ended)
    return [(worker, action) for worker, action in judged if action]


def _action(worker: Worker, rules: Sequence[FailureRule], has_joined: bool) -> str:
    """Return the action for the end of a worker; empty if it is not a failure.

    Exit codes count only for a worker that ended by its own doing.
    """
    fails = own_doing(worker) or not (has_joined or worker.deleting or worker.disrupted)
    if not fails and worker.deleting and not worker.disrupted:
        return ""
    found = action_of(rules, worker.exit_code if fails else None, _reason(worker))
    return found or (RuleAction.COUNT.value if fails else "")


def _reason(worker: Worker) -> str:
    """Return the reason of a worker's end in the terms of rules; empty if there is none."""
    diagnosis = diagnose(worker.reason, worker.message)
    if diagnosis and diagnosis.reason in _DIAGNOSED:
        return str(_DIAGNOSED[diagnosis.reason])
    return str(_REASONS.get(worker.reason, ""))


def _counted(
    observed: Observed, worker: Worker, known: WorkerFailures | None, action: str, now: datetime
) -> WorkerFailures:
    policy, whole = observed.job.spec.failure_policy, now.replace(microsecond=0)
    in_a_row = known and known.at > now - timedelta(seconds=CALM_SECONDS)
    count = 1 + (known.count if known and in_a_row else 0)
    costs = action != RuleAction.IGNORE
    before = known.times if known else ()
    times = (*before, whole)[-MAX_TIMES:] if costs else before
    seconds = policy.backoff_seconds * 2 ** min(16, max(0, count - 2))
    pause = min(seconds, MAX_PAUSE_SECONDS) if count > 1 else 0.0
    diagnosis = diagnose(worker.reason, worker.message)
    return WorkerFailures(
        group=worker.group,
        index=worker.index,
        worker=worker.name,
        count=count,
        spent=costs + (_spent(known, None, now) if known and in_a_row else 0),
        times=times if policy.window_seconds is not None else (),
        reason=(diagnosis.reason if diagnosis else Reason.WORKERS_FAIL).value,
        exit_code=worker.exit_code,
        at=whole,
        retry_at=_rounded_up(now + timedelta(seconds=pause)) if pause else whole,
        tail=last_lines(worker.message, MAX_TAIL),
    )


def _spent(failures: WorkerFailures, window: float | None, now: datetime) -> int:
    """Return how many failures of a slot count against the budget now."""
    if window is None:
        return failures.count if failures.spent is None else failures.spent
    times = [at.timestamp() for at in failures.times]
    return count_since(times, now.timestamp() - window)


def _rounded_up(moment: datetime) -> datetime:
    """Return a time in whole seconds, as in all times of the API server."""
    return (moment + timedelta(microseconds=999_999)).replace(microsecond=0)
