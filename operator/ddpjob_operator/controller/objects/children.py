"""The pods, Services and NetworkPolicies of jobs, kept in memory by reflectors.

Only objects that the job's UID owns count.
May not: write to the API server, or decide anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

from ddpjob_operator.api import constants
from ddpjob_operator.api.spec import DDPJob
from ddpjob_operator.kube.interface import ApiServer
from ddpjob_operator.kube.reflector import Reflector
from ddpjob_operator.manifests.parse import Child, Pod, parse_child, parse_pod

Plural = Literal["pods", "services", "networkpolicies"]
T = TypeVar("T", Pod, Child)


PREFIXES: Mapping[Plural, str] = {
    "pods": "/api/v1",
    "services": "/api/v1",
    "networkpolicies": "/apis/networking.k8s.io/v1",
}


def path_of(namespace: str, plural: Plural) -> str:
    """Return the path of a namespace's objects of one kind."""
    return f"{PREFIXES[plural]}/namespaces/{namespace}/{plural}"


class Children:
    """The objects of all jobs."""

    def __init__(
        self,
        kube: ApiServer,
        scopes: Mapping[str, str],
        on_change: Callable[[str, str], None],
        clock: Callable[[], float],
        *,
        policies: bool,
    ) -> None:
        """`scopes`: path of each namespace; `on_change` is called with namespace and job.

        Without `policies` it follows no NetworkPolicy, and no job lacks one.
        """

        def changed(thing: Pod | Child) -> None:
            on_change(thing.namespace, thing.job)

        def follow(plural: Plural, trim: Callable[[dict[str, Any]], T]) -> dict[str, Reflector[T]]:
            return {
                namespace: Reflector(
                    kube,
                    f"{PREFIXES[plural]}{scope}/{plural}",
                    constants.LABEL_JOB,
                    trim,
                    changed,
                    clock=clock,
                )
                for namespace, scope in scopes.items()
            }

        self._pods = follow("pods", parse_pod)
        self._services = follow("services", parse_child)
        self._policies = follow("networkpolicies", parse_child) if policies else None

    @property
    def reflectors(self) -> list[Reflector[Any]]:
        """All reflectors, for the controller to run and the health checks to watch."""
        policies = self._policies or {}
        return [*self._pods.values(), *self._services.values(), *policies.values()]

    def pods(self, job: DDPJob) -> list[Pod]:
        """Return the pods of a job, ordered by name."""
        return [p for p in _of(self._pods, job) if p.owner == job.metadata.uid]

    def has_service(self, job: DDPJob) -> bool:
        """Return whether the job's Service exists."""
        return any(each.owner == job.metadata.uid for each in _of(self._services, job))

    def has_policy(self, job: DDPJob) -> bool:
        """Return whether the job's NetworkPolicy exists, or none is wanted."""
        if self._policies is None:
            return True
        return any(each.owner == job.metadata.uid for each in _of(self._policies, job))

    def put(self, plural: Plural, obj: Mapping[str, Any]) -> None:
        """Store the result of a write, which the next pass must see."""
        self._reflector(plural, obj["metadata"]["namespace"]).put(obj)

    def learn(self, plural: Plural, obj: Mapping[str, Any]) -> bool:
        """Store an object that was read by itself; return whether it was not known like this."""
        return self._reflector(plural, obj["metadata"]["namespace"]).learn(obj)

    def drop_pod(self, pod: Pod) -> bool:
        """Forget a pod that does not exist any more; return whether it was known."""
        return self._reflector("pods", pod.namespace).drop(pod.namespace, pod.name, pod.uid)

    def _reflector(self, plural: Plural, namespace: str) -> Reflector[Any]:
        followed: dict[Plural, Mapping[str, Reflector[Any]]] = {
            "pods": self._pods,
            "services": self._services,
            "networkpolicies": self._policies or {},
        }
        return _scoped(followed[plural], namespace)


def _scoped(reflectors: Mapping[str, Reflector[T]], namespace: str) -> Reflector[T]:
    """Return the reflector of this namespace."""
    return reflectors[namespace if namespace in reflectors else ""]


def _of(reflectors: Mapping[str, Reflector[T]], job: DDPJob) -> tuple[T, ...]:
    namespace = job.metadata.namespace
    return _scoped(reflectors, namespace).by_job(namespace, job.metadata.name)
