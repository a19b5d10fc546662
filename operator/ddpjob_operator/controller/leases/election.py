"""Decides by a Lease which operator leads. Pure: the caller supplies every time.

Theory of operation. The holder renews the Lease every RENEW_SECONDS. It may write until
SURE_SECONDS after it sent its last successful renewal. Another operator takes the Lease if it saw
no change for the Lease's own duration, LEASE_SECONDS or more, or if it has no holder. Each operator
measures with its own monotonic clock; no clock of another machine counts. The difference,
LEASE_SECONDS - SURE_SECONDS, is the time in which a request that was sent at the last moment
arrives at the API server.

May not: send anything, or read a clock.
"""

from __future__ import annotations

import dataclasses
from datetime import datetime
from typing import Any

LEASE_SECONDS = 15
SURE_SECONDS = 10.0
RENEW_SECONDS = 2.0
ATTEMPT_SECONDS = 4.0  # limit of one attempt to renew: two fit into SURE_SECONDS

Lease = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Sighting:
    """A version of the Lease, and the time at which this operator first saw it."""

    version: str
    holder: str
    duration: float
    at: float


def see(lease: Lease, before: Sighting | None, now: float) -> Sighting:
    """Return the sighting of a Lease that was read; the same version keeps its first time."""
    version = lease["metadata"]["resourceVersion"]
    if before is not None and before.version == version:
        return before
    spec = lease.get("spec") or {}
    duration = float(spec.get("leaseDurationSeconds") or LEASE_SECONDS)
    return Sighting(version, spec.get("holderIdentity") or "", duration, now)


def may_take(seen: Sighting, identity: str, now: float) -> bool:
    """Return whether this operator may take the Lease; its own after a lost answer, too."""
    return seen.holder in ("", identity) or now - seen.at >= seen.duration


def is_sure(renewed_at: float | None, now: float) -> bool:
    """Return whether the holder surely holds the Lease; `renewed_at`: its request was sent then."""
    return renewed_at is not None and now - renewed_at < SURE_SECONDS


def new_lease(namespace: str, name: str, identity: str, now: datetime) -> Lease:
    """Return the first Lease."""
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"namespace": namespace, "name": name},
        "spec": {**_held(identity, now), "acquireTime": _text(now), "leaseTransitions": 0},
    }


def taken(lease: Lease, identity: str, now: datetime) -> Lease:
    """Return the Lease with another holder."""
    spec = lease.get("spec") or {}
    transitions = (spec.get("leaseTransitions") or 0) + 1
    changes = {"acquireTime": _text(now), "leaseTransitions": transitions}
    return {**lease, "spec": {**spec, **_held(identity, now), **changes}}


def renewed(lease: Lease, now: datetime) -> Lease:
    """Return the Lease with a new time."""
    return {**lease, "spec": {**lease["spec"], "renewTime": _text(now)}}


def released(lease: Lease, now: datetime) -> Lease:
    """Return the Lease without a holder, which anyone may take."""
    return {**lease, "spec": {**lease["spec"], "holderIdentity": "", "renewTime": _text(now)}}


def _held(identity: str, now: datetime) -> dict[str, Any]:
    return {
        "holderIdentity": identity,
        "leaseDurationSeconds": LEASE_SECONDS,
        "renewTime": _text(now),
    }


def _text(now: datetime) -> str:
    """Return a time as the API server has it in a Lease."""
    return now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
