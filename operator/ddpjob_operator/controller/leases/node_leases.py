"""Reads the Leases that kubelets renew every 10 s, of nodes with silent services only.

A node whose kubelet renews its Lease is alive. Only changes that this operator has seen count, by its
own clock: the clock of a node may be wrong. Without the right to read Leases, nothing is known.
May not: decide whether a node is lost.
"""

from __future__ import annotations

from collections.abc import Callable

from ddpjob_operator.controller.leases.election import Sighting, see
from ddpjob_operator.controller.leases.leadership import LeaseName
from ddpjob_operator.kube.interface import ApiError, ApiServer, UnreachableError
from ddpjob_operator.request import Request

NAMESPACE = "kube-node-lease"


class NodeLeases:
    """The last sightings of the Leases of nodes."""

    def __init__(self, kube: ApiServer, clock: Callable[[], float]) -> None:
        self._kube = kube
        self._clock = clock
        self._seen: dict[str, Sighting] = {}

    async def unrenewed(self, node: str) -> float | None:
        """Return the seconds without a renewal since the operator began to read; None: unknown."""
        try:
            lease = await self._kube.send(Request("GET", LeaseName(NAMESPACE, node).path))
        except (ApiError, UnreachableError):
            return None
        now = self._clock()
        self._seen[node] = see(lease, self._seen.get(node), now)
        return now - self._seen[node].at
