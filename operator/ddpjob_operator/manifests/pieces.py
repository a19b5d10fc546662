"""Pieces of manifests that several objects share, and careful access to what users wrote.

A template may have any shape: the API server validates it, not this package.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ddpjob_protocol.environment import GRACE_SECONDS

Manifest = dict[str, Any]

STARTUP_SECONDS = 180  # of a service, until its first answer
UNREACHABLE = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


def tolerate_unreachable(spec: Manifest, seconds: int) -> list[Manifest]:
    """Return the pod's tolerations after a time limit on unreachable nodes, unless one is set.

    Kubernetes uses the first toleration that matches, and one without a key matches everything.
    """
    given = as_list(spec.get("tolerations"))
    known = set(texts(given, "key"))
    ours = [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}
        for key in UNREACHABLE
        if key not in known
    ]
    return [*ours, *given]


def grace_seconds(spec: Manifest) -> Any:
    """Return the grace period of a worker's pod."""
    given = spec.get("terminationGracePeriodSeconds")
    return GRACE_SECONDS if given is None else given


def longest_grace_seconds(specs: Iterable[Manifest]) -> int:
    """Return the longest grace period of these workers' pods; other values are rejected later."""
    given = map(grace_seconds, specs)
    return max((seconds for seconds in given if isinstance(seconds, int)), default=GRACE_SECONDS)


def small_resources(request: str, **limits: str) -> Manifest:
    """Return requests and limits of the operator's own containers; a quota may require limits."""
    return {"requests": {"cpu": "10m", "memory": request}, "limits": limits}


def variables(values: Mapping[str, str]) -> list[Manifest]:
    """Return environment variables in the form of a container."""
    return [{"name": name, "value": value} for name, value in values.items()]


def texts(entries: Iterable[Any], field: str) -> Iterator[str]:
    """Yield the values of a field from the entries in which the value is text."""
    for entry in entries:
        value = entry.get(field) if isinstance(entry, dict) else None
        if isinstance(value, str):
            yield value


def as_list(value: object) -> list[Any]:
    """Return a copy of a list; wrap any other value, so that the API server rejects it."""
    return list(value) if isinstance(value, list) else [] if value is None else [value]


def as_mapping(value: object) -> dict[str, Any]:
    """Return a mapping, or an empty one for any other value."""
    return value if isinstance(value, dict) else {}


def probes(port: str, grace_seconds: int) -> Manifest:
    """Return the probes of a service that answers /healthz on a named port.

    On a starved node Python takes longer to start than the service may be silent later. If it is silent
    for half a minute, it is restarted after this grace, not after that of its pod.
    """
    ask = {"httpGet": {"path": "/healthz", "port": port}, "timeoutSeconds": 5}
    return {
        "startupProbe": {**ask, "periodSeconds": 1, "failureThreshold": STARTUP_SECONDS},
        "readinessProbe": {**ask, "periodSeconds": 2},
        "livenessProbe": {
            **ask,
            "periodSeconds": 5,
            "failureThreshold": 6,
            "terminationGracePeriodSeconds": grace_seconds,
        },
    }
