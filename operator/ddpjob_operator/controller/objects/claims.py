"""Finds snapshot claims that only one node can use.

May not: decide whether that matters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ddpjob_operator.api.spec import DDPJob
from ddpjob_operator.kube.interface import ApiError, ApiServer
from ddpjob_operator.planner.observed import Worker
from ddpjob_operator.request import Request

UNKNOWN = (400, 403, 404, 422)  # the scheduler reports a missing claim


async def single_node_claim(kube: ApiServer, job: DDPJob, workers: Iterable[Worker]) -> str:
    """Return the job's snapshot claim if only one node can use it but several nodes need it."""
    source = (job.spec.snapshot.storage or {}).get("persistentVolumeClaim")
    claim = source.get("claimName") if isinstance(source, Mapping) else None
    nodes = {worker.node for worker in workers if worker.live}
    if not claim or len(nodes - {None}) < 2:
        return ""
    path = f"/api/v1/namespaces/{job.metadata.namespace}/persistentvolumeclaims/{claim}"
    try:
        found = await kube.send(Request("GET", path))
    except ApiError as error:
        if error.status in UNKNOWN:
            return ""
        raise
    modes = set(found["spec"].get("accessModes") or ())
    return "" if modes & {"ReadWriteMany", "ReadOnlyMany"} else str(claim)
