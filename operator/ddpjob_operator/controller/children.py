"""The pods and Services of jobs, kept in memory by reflectors.

Only objects that the job's UID owns count.
May not: write to the API server, or decide anything.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, TypeVar

from ddpjob_operator.api import constants
from ddpjob_operator.api.spec import DDPJob
from ddpjob_operator.kube.interface import ApiServer
from ddpjob_operator.kube.reflector import Reflector
from ddpjob_operator.manifests.parse import Pod, RendezvousService, parse_pod, parse_service
from ddpjob_operator.planner.observed import Worker

Plural = Literal["pods", "services"]
T = TypeVar("T", Pod, RendezvousService)


class Children:
    """The pods and Services of all jobs."""

    def __init__(
        self,
        kube: ApiServer,
        scopes: Mapping[str, str],
        on_change: Callable[[str, str], None],
        clock: Callable[[], float],
    ) -> None:
        """`scopes`: path of each namespace; `on_change` is called with namespace and job."""

        def changed(thing: Pod | RendezvousService) -> None:
            on_change(thing.namespace, thing.job)

        def follow(plural: Plural, trim: Callable[[dict[str, Any]], T]) -> dict[str, Reflector[T]]:
            return {
                namespace: Reflector(
                    kube,
                    f"/api/v1{scope}/{plural}",
                    constants.LABEL_JOB,
                    trim,
                    changed,
                    clock=clock,
                )
                for namespace, scope in scopes.items()
            }

        self._pods = follow("pods", parse_pod)
        self._services = follow("services", parse_service)

    @property
    def reflectors(self) -> list[Reflector[Any]]:
        """All reflectors, for the controller to run and the health checks to watch."""
        return [*self._pods.values(), *self._services.values()]

    def pods(self, job: DDPJob) -> list[Pod]:
        """Return the pods of a job, ordered by name."""
        return [p for p in _of(self._pods, job) if p.owner == job.metadata.uid]

    def token(self, job: DDPJob) -> str:
        """Return the token of the rendezvous pod; without one, that of a worker; or an empty text."""
        ordered = sorted(self.pods(job), key=lambda pod: (pod.rendezvous is None, not pod.live))
        return next((pod.token for pod in ordered if pod.token), "")

    def workers(self, job: DDPJob) -> Iterator[Worker]:
        """Yield the workers of a job; the live rendezvous pod decides which token is right."""
        pods = self.pods(job)
        right = {pod.token for pod in pods if pod.rendezvous and pod.live and pod.token}
        for pod in pods:
            if pod.worker is not None:
                wrong = bool(right and pod.token) and pod.token not in right
                yield dataclasses.replace(pod.worker, wrong_token=wrong)

    def has_service(self, job: DDPJob) -> bool:
        """Return whether the job's Service exists."""
        return any(each.owner == job.metadata.uid for each in _of(self._services, job))

    def put(self, plural: Plural, obj: Mapping[str, Any]) -> None:
        """Store the result of a write, which the next pass must see."""
        namespace = obj["metadata"]["namespace"]
        if plural == "pods":
            _scoped(self._pods, namespace).put(obj)
        else:
            _scoped(self._services, namespace).put(obj)


def _scoped(reflectors: Mapping[str, Reflector[T]], namespace: str) -> Reflector[T]:
    """Return the reflector of this namespace."""
    return reflectors[namespace if namespace in reflectors else ""]


def _of(reflectors: Mapping[str, Reflector[T]], job: DDPJob) -> tuple[T, ...]:
    namespace = job.metadata.namespace
    return _scoped(reflectors, namespace).by_job(namespace, job.metadata.name)
