"""Judges a rendezvous service that does not start, or does not answer the operator.

A report that the service has not renewed for EXPIRY_SECONDS does not count any more: the job may
train or not. May not: decide what replaces a silent pod.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from ddpjob_operator.api import constants
from ddpjob_operator.api.constants import ConditionType, Reason
from ddpjob_operator.api.status import Condition
from ddpjob_operator.planner.failures.diagnosis import quote
from ddpjob_operator.planner.observed import Observed, Silence
from ddpjob_protocol.addresses import join_address

EXPIRY_SECONDS = 15.0
SCHEDULING_SECONDS = 10.0  # time to bind a volume or free a node
MANY_RESTARTS = 3  # of the container of the service


def silent_service(observed: Observed) -> Silence | None:
    """Return the silence of the service once it has lasted for EXPIRY_SECONDS."""
    silence = observed.silence
    return silence if silence is not None and silence.seconds >= EXPIRY_SECONDS else None


def seconds_until_expiry(observed: Observed) -> float | None:
    """Return the seconds until the report expires; None if the service answers, or it has expired."""
    silence = observed.silence
    if silence is None or silence.seconds >= EXPIRY_SECONDS:
        return None
    return EXPIRY_SECONDS - silence.seconds


def service_unreachable(observed: Observed) -> Condition | None:
    """Return Stalled if a ready service does not answer the operator, with the remedy."""
    silence, pod = silent_service(observed), observed.rendezvous
    if silence is None or pod is None or not pod.ready:
        return None
    name = constants.rendezvous_name(observed.job.metadata.name, pod.term)
    where = f" at {join_address(pod.address, constants.SERVICE_PORT)}" if pod.address else ""
    text = f"the operator gets no answer from pod {name}{where}, which is ready: {silence.error}"
    remedy = (
        f"it does not know the operator's key; delete pod {name}, its successor gets the right one"
        if _refuses(silence)
        else f"allow connections from the operator's namespace to port {constants.SERVICE_PORT} of"
        " the job's rendezvous pod: check network policies and firewalls between nodes"
    )
    return _stalled(Reason.SERVICE_UNREACHABLE, f"{text}; {remedy}")


def service_does_not_start(observed: Observed, now: datetime) -> Condition | None:
    """Return Stalled if the rendezvous pod has no node for long, or its container fails again."""
    pod = observed.rendezvous
    if pod is None or pod.ready:
        return None
    text = quote(pod.message or pod.reason)
    since = pod.unschedulable_since
    if since is not None and now >= since + timedelta(seconds=SCHEDULING_SECONDS):
        message = f"no node takes the rendezvous pod: {text}; it needs one node for a small pod"
        return _stalled(Reason.RENDEZVOUS_NOT_PLACED, message)
    if pod.restarts >= MANY_RESTARTS:
        name = constants.rendezvous_name(observed.job.metadata.name, pod.term)
        message = f"{name} has ended {pod.restarts} times; the last time: {text or 'no message'}"
        remedy = f"see its log: kubectl logs {name} --previous"
        return _stalled(Reason.RENDEZVOUS_FAILS, f"{message}; {remedy}")
    return None


def _refuses(silence: Silence) -> bool:
    return ": 403 " in silence.error or "403 Forbidden" in silence.error


def _stalled(reason: Reason, message: str) -> Condition:
    kind = ConditionType.STALLED.value
    return Condition(type=kind, status="True", reason=reason.value, message=message)
