"""Observes workers whose pods run but which send nothing to the rendezvous service.

A worker that has joined before is silent. The status keeps since when, and the operator replaces the
worker once its processes have ended by themselves: after orphanSeconds and a margin. If other members
train and the kubelet of its node does not renew its Lease, the node is lost: its processes cannot
train without the others, and the worker is replaced at once. A worker that
never registered is not connected. A successor would most likely not connect either, so it stays.
The pods of `slow_starts` do not run yet.

The time counts only while the service answers the operator. A service that starts again has
no workers at first.
May not: delete or create a pod.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta

from ddpjob_operator.api import constants
from ddpjob_operator.api.constants import Reason
from ddpjob_operator.api.spec import DDPJob
from ddpjob_operator.api.status import SilentWorkerStatus
from ddpjob_operator.planner.joined import joined_ever
from ddpjob_operator.planner.observed import Observed, Phase, Worker
from ddpjob_operator.planner.silence import slow_starts
from ddpjob_protocol.messages.control import Report

TOLD_SECONDS = 5.0  # an agent connects again within seconds
MARGIN_SECONDS = 15.0  # for the end of the processes after orphanSeconds
NODE_LOST_SECONDS = 12.0  # without a renewal; a kubelet renews its Lease every 10 s
FOREVER = timedelta(days=1)
# From the start of the agent to its registration. Before it, the agent imports torch for at most
# 120 s (READY_SECONDS of its fork server).
SLOW_SECONDS = 60.0
CONNECT_SECONDS = 150.0


def silent_workers(observed: Observed, now: datetime) -> tuple[SilentWorkerStatus, ...]:
    """Return the silent workers for the status; nothing is known without a report."""
    if observed.report is None:
        return ()
    known = {each.name: each.since for each in observed.job.status.silent_workers}
    joined = joined_ever(observed.job, observed.report) | known.keys()
    begin = now.replace(microsecond=0)
    return tuple(
        # A time in the future was written before the clock was set back.
        SilentWorkerStatus(name=worker.name, since=min(begin, known.get(worker.name, begin)))
        for worker in _unheard(observed)
        if worker.name in joined
    )


def told(observed: Observed, now: datetime) -> dict[str, Reason]:
    """Return the workers that the status names, with the reason."""
    found = {
        each.name: Reason.WORKER_SILENT
        for each in silent_workers(observed, now)
        if now >= each.since + timedelta(seconds=TOLD_SECONDS)
    }
    for worker, begin in _never_registered(observed):
        if now >= begin + timedelta(seconds=CONNECT_SECONDS):
            found[worker.name] = Reason.NOT_CONNECTED
    found.update(dict.fromkeys(slow_starts.do_not_start(observed, now), Reason.WORKER_NOT_STARTED))
    return found


def start_slowly(observed: Observed, now: datetime) -> bool:
    """Return whether workers need long to register, and may do so yet."""
    pauses = [now - begin for _, begin in _never_registered(observed)]
    slow, late = timedelta(seconds=SLOW_SECONDS), timedelta(seconds=CONNECT_SECONDS)
    return any(slow <= pause < late for pause in pauses)


def overdue(observed: Observed, now: datetime) -> set[str]:
    """Return the silent workers that are replaced now."""
    lost = _lost_at(observed, now)
    silent = silent_workers(observed, now)
    return {
        each.name
        for each in silent
        if now >= min(_replace_at(observed, each), lost.get(each.name, now + FOREVER))
    }


def nodes_to_ask(job: DDPJob, report: Report | None, workers: Iterable[Worker]) -> set[str]:
    """Return the nodes whose Leases matter: of workers that are silent while other members train."""
    silent = {each.name for each in job.status.silent_workers}
    if report is None or report.membership is None:
        return set()
    members = {each.worker for each in report.membership.members}
    if not members & (set(report.workers) - silent):
        return set()
    return {each.node for each in workers if each.name in silent and each.node and each.live}


def lost_node(observed: Observed, worker: Worker) -> str:
    """Return the node of a worker if it is lost: its kubelet does not renew its Lease; else empty."""
    seconds = observed.unrenewed_nodes.get(worker.node or "")
    return worker.node or "" if seconds is not None and seconds >= NODE_LOST_SECONDS else ""


def describe(observed: Observed, worker: Worker, now: datetime) -> str:
    """Return the problem of a worker that the status names, and the remedy."""
    if worker.name in slow_starts.do_not_start(observed, now):
        return slow_starts.describe(worker)
    where = f" on node {worker.node}" if worker.node else ""
    for each in silent_workers(observed, now):
        if each.name == worker.name:
            return (
                f"its pod is Running{where}, but the rendezvous service receives nothing from it since"
                f" {each.since:%H:%M:%S} UTC; look at the node and its network; the pod is replaced"
                f" at {_replace_at(observed, each):%H:%M:%S} UTC unless the worker reports before"
            )
    return (
        f"its pod runs{where} for more than {CONNECT_SECONDS:.0f} s, but the agent has never reached"
        " the rendezvous service; allow"
        f" connections between the pods of the job to port {constants.SERVICE_PORT}, and to DNS:"
        " check network policies, and the log of the pod"
    )


def next_times(observed: Observed, now: datetime) -> Iterator[datetime]:
    """Yield the times at which a later call returns something else if nothing changes."""
    for each in silent_workers(observed, now):
        yield each.since + timedelta(seconds=TOLD_SECONDS)
        yield _replace_at(observed, each)
    yield from _lost_at(observed, now).values()
    for _, begin in slow_starts.placed_since(observed):
        yield begin + timedelta(seconds=slow_starts.START_SECONDS)
    for _, begin in _never_registered(observed):
        yield from (begin + timedelta(seconds=each) for each in (SLOW_SECONDS, CONNECT_SECONDS))


def _unheard(observed: Observed) -> list[Worker]:
    heard = set(observed.report.workers) if observed.report else set()
    return [
        worker
        for worker in observed.workers
        if worker.live and worker.phase is Phase.RUNNING and worker.name not in heard
    ]


def _never_registered(observed: Observed) -> Iterator[tuple[Worker, datetime]]:
    """Yield the workers that have never registered, with the start of their agents."""
    if observed.report is None:
        return
    silent = {each.name for each in observed.job.status.silent_workers}
    joined = joined_ever(observed.job, observed.report) | silent
    for worker in _unheard(observed):
        if worker.name not in joined and worker.running_since is not None:
            yield worker, worker.running_since


def _lost_at(observed: Observed, now: datetime) -> dict[str, datetime]:
    """Return when the nodes of silent workers count as lost if their Leases stay as they are."""
    waits = {
        node: max(0.0, NODE_LOST_SECONDS - seconds)
        for node, seconds in observed.unrenewed_nodes.items()
    }
    since = {each.name: each.since for each in observed.job.status.silent_workers}
    return {
        worker.name: max(
            now + timedelta(seconds=waits[worker.node]),
            since[worker.name] + timedelta(seconds=TOLD_SECONDS),
        )
        for worker in _unheard(observed)
        if worker.node in waits and worker.name in since
    }


def _replace_at(observed: Observed, silent: SilentWorkerStatus) -> datetime:
    seconds = observed.job.spec.elastic.orphan_seconds + MARGIN_SECONDS
    return silent.since + timedelta(seconds=seconds)
