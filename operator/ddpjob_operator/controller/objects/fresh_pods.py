"""Reads pods of a job from the API server, where acting on the store could be wrong.

A watch may be late or lose an event. So a pod that was not deleted is read again, and the place of a
new worker is read first. May not: create or delete.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ddpjob_operator.api import constants
from ddpjob_operator.api.spec import DDPJob
from ddpjob_operator.controller.objects.children import Children, path_of
from ddpjob_operator.controller.objects.rejections import rejection_of
from ddpjob_operator.kube.interface import NOT_FOUND, ApiError, ApiServer, UnreachableError, pages
from ddpjob_operator.kube.reflector import PAGE
from ddpjob_operator.manifests.parse import Pod
from ddpjob_operator.planner.actions import CreateWorker
from ddpjob_operator.planner.observed import Rejection
from ddpjob_operator.request import Request

FEW_SLOTS = 8  # read one by one; for more, all pods of the job are listed


class FreshPods:
    """The pods of all jobs, as the API server has them now; the store learns each."""

    def __init__(self, kube: ApiServer, children: Children) -> None:
        self._kube = kube
        self._children = children

    async def read(self, pod: Pod) -> Rejection | None:
        """Read a pod that is not as it was observed, for the next pass."""
        path = f"{path_of(pod.namespace, 'pods')}/{pod.name}"
        try:
            found = await self._kube.send(Request("GET", path))
        except (ApiError, UnreachableError) as error:
            if not isinstance(error, ApiError) or error.status != NOT_FOUND:
                return rejection_of(pod.name, error, "reading")
        else:
            if found["metadata"]["uid"] == pod.uid:
                self._children.learn("pods", found)
                return None
        self._children.drop_pod(pod)
        return None

    async def differ(
        self, job: DDPJob, seen: Mapping[str, Pod], new: Sequence[CreateWorker]
    ) -> bool:
        """Read the pods in the place of new workers; return whether they are not as observed.

        A new job has none.
        """
        if not new or not (seen or job.status.membership):
            return False
        slots = {(each.group, str(each.index)) for each in new}
        own = f"{constants.LABEL_JOB}={job.metadata.name}"
        selectors = [own] if len(slots) > FEW_SLOTS else [
            f"{own},{constants.LABEL_GROUP}={group},{constants.LABEL_INDEX}={index}"
            for group, index in sorted(slots)
        ]  # fmt: skip
        found = [await self._list(job, selector) for selector in selectors]
        return any(found)

    async def _list(self, job: DDPJob, selector: str) -> bool:
        path = path_of(job.metadata.namespace, "pods")
        differs = False
        async for page in pages(self._kube, path, {"labelSelector": selector, "limit": PAGE}):
            for each in page["items"]:
                differs |= self._children.learn("pods", each)
        return differs
