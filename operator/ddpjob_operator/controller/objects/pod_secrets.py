"""Creates the Secret of a pod. The operator has no right to read, change or delete a Secret.

If the answer to a creation is lost, the next one is rejected, because the Secret exists. It has the
same keys, because they are derived and its name contains their fingerprint.
"""

from __future__ import annotations

from ddpjob_operator.api.spec import DDPJob
from ddpjob_operator.controller.objects.rejections import rejection_of
from ddpjob_operator.kube.interface import ApiError, ApiServer, UnreachableError
from ddpjob_operator.manifests.secrets import build_secret
from ddpjob_operator.planner.actions import CreateRendezvous, CreateWorker
from ddpjob_operator.planner.observed import Rejection
from ddpjob_operator.request import Request
from ddpjob_protocol.keys.credentials import JobKey


async def create_secret(
    kube: ApiServer, job: DDPJob, action: CreateRendezvous | CreateWorker, key: JobKey
) -> Rejection | None:
    """Create the Secret of a pod unless it exists; return a rejection if that failed."""
    path = f"/api/v1/namespaces/{job.metadata.namespace}/secrets"
    try:
        await kube.send(Request("POST", path, body=build_secret(job, action, key)))
    except (ApiError, UnreachableError) as error:
        if not isinstance(error, ApiError) or not error.exists:
            return rejection_of(action.name, error, "creating the Secret of")
    return None
