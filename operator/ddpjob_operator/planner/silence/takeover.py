"""Decides when the service of the next term takes over from one that does not work.

Kubernetes replaces a rendezvous pod late: a node counts as lost after about 50 s, and a pod that
runs but is not ready is never replaced. The agents do not need the old pod: its successor learns
the membership from them, and its term fences the old service.

A node is lost if its service does not answer and its kubelet does not renew its Lease. The next
pod avoids that node. If no other node takes the pod, it is replaced by one that avoids none.

Each takeover doubles the patience with the successor, until a service has worked for CALM_SECONDS.
May not: delete or create a pod.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from ddpjob_operator.api import constants
from ddpjob_operator.api.constants import EventReason
from ddpjob_operator.api.status import RendezvousFailures
from ddpjob_operator.planner.actions import Event
from ddpjob_operator.planner.observed import Observed, Rendezvous
from ddpjob_operator.planner.silence.silent_service import SCHEDULING_SECONDS
from ddpjob_operator.planner.silence.silent_workers import NODE_LOST_SECONDS

NOT_READY_SECONDS = 45.0  # a restarted container is ready after a few seconds
SILENT_SECONDS = 10.0
CALM_SECONDS = 600.0
MAX_DOUBLINGS = 4


def seconds_until_takeover(observed: Observed, now: datetime) -> float | None:
    """Return the seconds until the next term takes over if nothing changes, or None."""
    at = _takeover_at(observed, now)
    return None if at is None else max(0.0, (at - now).total_seconds())


def update_failures(observed: Observed, now: datetime) -> RendezvousFailures | None:
    """Return the takeovers in a row for the status; None once a service works for long enough."""
    pod, known = observed.rendezvous, observed.job.status.rendezvous_failures
    if pod is None or (known is not None and known.term == pod.term):
        return known
    if reason := _reason(observed, pod, now):
        count = 1 + (known.count if known else 0)
        node = _lost_node(observed)
        return RendezvousFailures(term=pod.term, count=count, message=reason, node=node)
    age = timedelta(0) if pod.created is None else now - pod.created
    return None if pod.ready and age >= timedelta(seconds=CALM_SECONDS) else known


def takeover_event(observed: Observed, new: RendezvousFailures | None) -> tuple[Event, ...]:
    """Return an event for a takeover that this pass has decided."""
    known = observed.job.status.rendezvous_failures
    if new is None or (known is not None and known.term == new.term):
        return ()
    name = observed.job.metadata.name
    old = constants.rendezvous_name(name, new.term)
    text = (
        f"{old} is replaced: {new.message}; the next rendezvous pod learns the membership from the"
        " agents, and training continues"
    )
    return (Event(EventReason.RENDEZVOUS_REPLACED.value, text, warning=True),)


def avoided(observed: Observed) -> tuple[str, ...]:
    """Return the lost node that the next rendezvous pod avoids."""
    known = observed.job.status.rendezvous_failures
    return (known.node,) if known is not None and known.node else ()


def _reason(observed: Observed, pod: Rendezvous, now: datetime) -> str:
    """Return why the next term takes over from the observed service; empty if it does not."""
    at = _takeover_at(observed, now)
    if pod.term < observed.job.status.rendezvous_term or at is None or at > now:
        return ""
    if _lost_node(observed):
        error = observed.silence.error if observed.silence else ""
        return (
            f"node {pod.node} is lost: its kubelet has not renewed its Lease for"
            f" {observed.node_unrenewed:.0f} s, and the service does not answer: {error}"
        )
    if pod.unschedulable_since is not None:
        return f"no node takes it but perhaps {', '.join(avoided(observed))}, which it avoids"
    why = f"; it does not answer the operator: {observed.silence.error}" if observed.silence else ""
    node = f" on node {pod.node}" if pod.node else ""
    since = f" since {pod.not_ready_since:%H:%M:%S} UTC" if pod.not_ready_since else ""
    return f"it runs{node} but is not ready{since}{why}"


def _lost_node(observed: Observed) -> str:
    """Return the node of the observed service if the node is lost; empty if not."""
    pod, unrenewed = observed.rendezvous, observed.node_unrenewed
    lost = unrenewed is not None and unrenewed >= NODE_LOST_SECONDS
    return pod.node if pod is not None and lost and _has_fallen_silent(observed) else ""


def _has_fallen_silent(observed: Observed) -> bool:
    return observed.silence is not None and observed.silence.answered


def _takeover_at(observed: Observed, now: datetime) -> datetime | None:
    pod = observed.rendezvous
    if pod is None:
        return None
    if observed.node_unrenewed is not None and _has_fallen_silent(observed):
        lost_at = now + timedelta(seconds=NODE_LOST_SECONDS - observed.node_unrenewed)
        own = _takeover_of_unready_at(observed, now)
        return lost_at if own is None else min(lost_at, own)
    if pod.unschedulable_since is not None and avoided(observed):
        return pod.unschedulable_since + timedelta(seconds=SCHEDULING_SECONDS)
    return _takeover_of_unready_at(observed, now)


def _takeover_of_unready_at(observed: Observed, now: datetime) -> datetime | None:
    pod, known = observed.rendezvous, observed.job.status.rendezvous_failures
    if pod is None or pod.ready or not pod.running:
        return None
    patience = 2 ** min(MAX_DOUBLINGS, known.count if known else 0)
    times = []
    if pod.not_ready_since is not None:
        times.append(pod.not_ready_since + timedelta(seconds=patience * NOT_READY_SECONDS))
    silence = observed.silence
    if silence is not None and silence.answered:
        left = patience * SILENT_SECONDS - silence.seconds
        times.append(now + timedelta(seconds=left))
    return min(times, default=None)
