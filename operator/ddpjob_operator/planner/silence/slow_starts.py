"""Observes workers whose pods have a node and do not start there.

A volume that is not mounted, a device that fails or an image that is pulled for ever: the kubelet
tries again without end, and the phase stays Pending. Images of 20 GB take minutes, so the status
names a worker after START_SECONDS, the time that a Deployment gives its pods. A problem that
`diagnose` knows is named at once, elsewhere.
May not: delete a pod. Its successor would pull the image again, and often on the same node.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from ddpjob_operator.planner.failures.diagnosis import diagnose, quote
from ddpjob_operator.planner.observed import Observed, Phase, Worker

START_SECONDS = 600.0


def placed_since(observed: Observed) -> Iterator[tuple[Worker, datetime]]:
    """Yield the workers that have a node and have not started, with the time that they got it."""
    for worker in observed.workers:
        waits = worker.scheduled and worker.phase is Phase.PENDING
        if waits and worker.placed_at and diagnose(worker.reason, worker.message) is None:
            yield worker, worker.placed_at


def do_not_start(observed: Observed, now: datetime) -> set[str]:
    """Return the workers that the status names."""
    limit = timedelta(seconds=START_SECONDS)
    return {worker.name for worker, begin in placed_since(observed) if now >= begin + limit}


def describe(worker: Worker) -> str:
    """Return the problem of a worker that the status names, and the remedy."""
    since = f" since {worker.placed_at:%H:%M:%S} UTC" if worker.placed_at else ""
    return (
        f"its pod is on node {worker.node}{since}, and its container has not started: {_why(worker)}."
        f" See the events of the pod: kubectl describe pod {worker.name}. If its image is large, wait."
        " If the node is at fault, cordon the node and delete the pod"
    )


def _why(worker: Worker) -> str:
    words = ": ".join(filter(None, (worker.reason, quote(worker.message))))
    if words or worker.sandbox_ready is None:
        return words or "the kubelet gives no reason"
    if worker.sandbox_ready:
        return "its image is pulled, or an init container runs"
    return "its volumes, devices or network are not ready"
