"""Counts the workers of a slot that ended by their own doing, one after the other.

A pod that was deleted, preempted or evicted for the sake of its node did nothing. One that ran out of
memory or of its disk limit, or whose agent ended with an error, most likely ends again: its successor
waits for a backoff, and the job fails once a slot has used up the budget of the application. A worker
that ended before it joined has only the backoff, because a correction of image or command repairs it.
May not: decide which workers to create.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timedelta

from ddpjob_operator.api.constants import Reason
from ddpjob_operator.api.status import WorkerFailures
from ddpjob_operator.planner.diagnosis import LOCAL_DISK, diagnose, quote, remedy_text
from ddpjob_operator.planner.joined import joined_ever
from ddpjob_operator.planner.observed import Observed, Phase, Worker
from ddpjob_protocol.exit_codes import Exit
from ddpjob_protocol.text import last_lines, plural

CALM_SECONDS = 600.0  # since the last failure; then the count of a slot begins again
MAX_PAUSE_SECONDS = 300.0
MAX_SLOTS = 500
MAX_TAILS = 5  # slots whose last words the status keeps
MAX_TAIL = 1000  # characters
LOST_BY_NODE = ("ContainerStatusUnknown", "NodeLost", "NodeShutdown", "Terminated", "Unknown")


def own_doing(worker: Worker) -> bool:
    """Return whether the pod of a worker ended by its own doing."""
    if worker.phase is not Phase.FAILED:
        return False
    if worker.reason == "Evicted":
        return re.search(LOCAL_DISK, worker.message) is not None
    if worker.deleting or worker.disrupted or worker.reason in LOST_BY_NODE:
        return False
    return worker.exit_code not in (None, Exit.OK, Exit.STOPPED)


def count_failures(observed: Observed, now: datetime) -> tuple[WorkerFailures, ...]:
    """Return the failures in a row of each slot, for the status; the newest come last."""
    counts = {(each.group, each.index): each for each in observed.job.status.worker_failures}
    for worker in _failed(observed):
        slot = (worker.group, worker.index)
        known = counts.get(slot)
        if known is None or known.worker != worker.name:
            counts[slot] = _counted(observed, worker, 1 + (known.count if known else 0), now)
    failed = {worker.name for worker in _failed(observed)}
    wanted = {group.name for group in observed.job.spec.groups()}
    calm = now - timedelta(seconds=CALM_SECONDS)
    kept = [e for e in counts.values() if e.group in wanted and (e.at > calm or e.worker in failed)]
    kept = sorted(kept, key=lambda each: each.at)[-MAX_SLOTS:]
    silent = [each.model_copy(update={"tail": ""}) for each in kept[:-MAX_TAILS]]
    return (*silent, *kept[-MAX_TAILS:])


def paused(observed: Observed, now: datetime) -> dict[tuple[str, int], WorkerFailures]:
    """Return the slots whose replacements wait for the end of their backoff."""
    counted = count_failures(observed, now)
    return {(each.group, each.index): each for each in counted if each.retry_at > now}


def exhausted(observed: Observed, now: datetime) -> tuple[Reason, str] | None:
    """Return reason and message of the failed job once a slot has used up the budget."""
    most = observed.job.spec.failure_policy.max_restarts.application
    joined = joined_ever(observed.job, observed.report)
    workers = {worker.name: worker for worker in observed.workers}
    for each in count_failures(observed, now):
        worker = workers.get(each.worker)
        if worker is None or each.count <= most or worker.name not in joined:
            continue
        if own_doing(worker):
            text = f"{describe(worker, each)} (maxRestarts.application: {most})"
            return Reason(each.reason), text + remedy_text(diagnose(worker.reason, worker.message))
    return None


def describe(worker: Worker, failures: WorkerFailures) -> str:
    """Return how often a worker has ended, and how the last time."""
    kind = "" if worker.reason == "Error" else worker.reason
    words = ", ".join(filter(None, (kind, quote(worker.message))))
    like = f" like {plural(failures.count - 1, 'worker')} before it" if failures.count > 1 else ""
    return f"{worker.name} ended{like}" + (f": {words}" if words else "")


def _failed(observed: Observed) -> Iterator[Worker]:
    """Yield the newest worker of each slot if its end counts."""
    newest: dict[tuple[str, int], Worker] = {}
    for worker in observed.workers:
        slot = (worker.group, worker.index)
        if slot not in newest or newest[slot].incarnation < worker.incarnation:
            newest[slot] = worker
    joined = joined_ever(observed.job, observed.report)
    for worker in newest.values():
        before = worker.name not in joined and not (worker.deleting or worker.disrupted)
        if worker.phase is not Phase.FAILED or observed.is_outdated(worker):
            continue
        if before or own_doing(worker):
            yield worker


def _counted(observed: Observed, worker: Worker, count: int, now: datetime) -> WorkerFailures:
    seconds = observed.job.spec.failure_policy.backoff_seconds * 2 ** min(16, max(0, count - 2))
    pause = min(seconds, MAX_PAUSE_SECONDS) if count > 1 else 0.0
    diagnosis = diagnose(worker.reason, worker.message)
    return WorkerFailures(
        group=worker.group,
        index=worker.index,
        worker=worker.name,
        count=count,
        reason=(diagnosis.reason if diagnosis else Reason.WORKERS_FAIL).value,
        exit_code=worker.exit_code,
        at=now.replace(microsecond=0),
        retry_at=_rounded_up(now + timedelta(seconds=pause))
        if pause
        else now.replace(microsecond=0),
        tail=last_lines(worker.message, MAX_TAIL),
    )


def _rounded_up(moment: datetime) -> datetime:
    """Return a time in whole seconds, as in all times of the API server."""
    return (moment + timedelta(microseconds=999_999)).replace(microsecond=0)
