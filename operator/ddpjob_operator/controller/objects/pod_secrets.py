"""Creates the Secrets of pods. The operator has no right to read, change or delete a Secret.

A pod comes before its Secret, because the pod owns it. Until the Secret exists, the kubelet repeats the
mount. An operator that ends between the two leaves a pod without a Secret. So each pod that has not
started is given its Secret once by each operator process; one that exists is not an error. It has the same
keys, because they are derived. A pod that has a node and still does not start is given its Secret again and
again: a user may have deleted it.
"""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Callable, Iterable

from ddpjob_operator.api.spec import DDPJob
from ddpjob_operator.controller.objects.rejections import rejection_of
from ddpjob_operator.kube.interface import ApiError, ApiServer, UnreachableError
from ddpjob_operator.manifests.parse import Pod
from ddpjob_operator.manifests.secrets import build_secret
from ddpjob_operator.planner.observed import Rejection
from ddpjob_operator.rendezvous.session_pool import Key
from ddpjob_operator.request import Request
from ddpjob_protocol.keys.credentials import JobKey

AGAIN_SECONDS = 60.0  # a container starts within seconds after its Secret is there


class PodSecrets:
    """The Secrets of the pods of all jobs, as far as this process has created them."""

    def __init__(self, kube: ApiServer, clock: Callable[[], float]) -> None:
        self._kube = kube
        self._clock = clock
        # Time at which each existed, by the UID of its pod.
        self._existing: defaultdict[Key, dict[str, float]] = defaultdict(dict)

    def missing(self, job: DDPJob, pods: Iterable[Pod], key: JobKey) -> list[Pod]:
        """Return those of all pods of a job that may wait for a Secret."""
        waiting = [each for each in pods if needs_secret(each, key)]
        known = self._existing[_key(job)]
        existing = {each.uid: known[each.uid] for each in waiting if each.uid in known}
        self._existing[_key(job)] = existing
        before = self._clock() - AGAIN_SECONDS
        return [
            each
            for each in waiting
            if each.uid not in existing or (each.node and existing[each.uid] <= before)
        ]

    async def create(self, job: DDPJob, pod: Pod, key: JobKey) -> Rejection | None:
        """Create the Secret of a pod unless it exists; return a rejection if that failed."""
        path = f"/api/v1/namespaces/{pod.namespace}/secrets"
        try:
            await self._kube.send(Request("POST", path, body=build_secret(job, pod, key)))
        except (ApiError, UnreachableError) as error:
            if not isinstance(error, ApiError) or not error.exists:
                return rejection_of(pod.name, error, "creating the Secret of")
        self._existing[_key(job)][pod.uid] = self._clock()
        return None

    def forget(self, key: Key) -> None:
        """Drop what is known of a job that no longer exists."""
        self._existing.pop(key, None)


def new_secret_name(pod: str) -> str:
    """Return a new name: the Secret of an earlier pod of this name is deleted with that pod."""
    return f"{pod}-{secrets.token_hex(4)}"


def needs_secret(pod: Pod, key: JobKey) -> bool:
    """Return whether a pod has not started; one with keys of another job key will be replaced."""
    return bool(pod.secret) and pod.key == key.fingerprint


def _key(job: DDPJob) -> Key:
    return Key(job.metadata.namespace, job.metadata.name)
