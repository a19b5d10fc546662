"""Reads the Leases that kubelets renew every 10 s, of nodes with silent services only.

A node whose kubelet renews its Lease is alive. Only changes that this operator has seen count, by its
own clock: the clock of a node may be wrong. Without the right to read Leases, nothing is known.
May not: decide whether a node is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

from ddpjob_operator.controller.leases.election import Sighting, see
from ddpjob_operator.controller.leases.leadership import LeaseName
from ddpjob_operator.kube.interface import ApiError, ApiServer, UnreachableError
from ddpjob_operator.request import Request

NAMESPACE = "kube-node-lease"
AT_ONCE = 8  # requests for one job


class NodeLeases:
    """The last sightings of the Leases of nodes."""

    def __init__(self, kube: ApiServer, clock: Callable[[], float]) -> None:
        self._kube = kube
        self._clock = clock
        self._seen: dict[str, Sighting] = {}

    async def all_unrenewed(self, nodes: Iterable[str]) -> Mapping[str, float]:
        """Return the same for several nodes, without those of which nothing is known."""
        limit = asyncio.Semaphore(AT_ONCE)

        async def read(node: str) -> float | None:
            async with limit:
                return await self.unrenewed(node)

        names = sorted(set(nodes))
        found = zip(names, await asyncio.gather(*map(read, names)), strict=True)
        return {node: seconds for node, seconds in found if seconds is not None}

    async def unrenewed(self, node: str) -> float | None:
        """Return the seconds without a renewal since the operator began to read; None: unknown."""
        try:
            lease = await self._kube.send(Request("GET", LeaseName(NAMESPACE, node).path))
        except (ApiError, UnreachableError):
            return None
        now = self._clock()
        self._seen[node] = see(lease, self._seen.get(node), now)
        return now - self._seen[node].at
