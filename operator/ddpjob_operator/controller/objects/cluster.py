"""Observes a job with all its objects in the cluster, and changes these objects.

Every pass reads the job itself again. Every write may be repeated safely: names are
deterministic, a pod names its Secret, and deletions carry the UID.
May not: decide what `plan` decides.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from ddpjob_operator.api import constants
from ddpjob_operator.api.constants import Reason
from ddpjob_operator.api.spec import DDPJob
from ddpjob_operator.controller.keys.job_keys import JobKeys
from ddpjob_operator.controller.leases.node_leases import NodeLeases
from ddpjob_operator.controller.objects.children import Children, Plural, path_of
from ddpjob_operator.controller.objects.claims import single_node_claim
from ddpjob_operator.controller.objects.foreign import describe_foreign
from ddpjob_operator.controller.objects.fresh_pods import FreshPods
from ddpjob_operator.controller.objects.jobs import Jobs
from ddpjob_operator.controller.objects.pod_secrets import PodSecrets, needs_secret, new_secret_name
from ddpjob_operator.controller.objects.posts import post
from ddpjob_operator.controller.objects.rejections import rejection_of
from ddpjob_operator.kube.interface import (
    CONFLICT,
    NOT_FOUND,
    ApiError,
    ApiServer,
    UnreachableError,
)
from ddpjob_operator.kube.reflector import Reflector
from ddpjob_operator.manifests import build
from ddpjob_operator.manifests.network_policy import OperatorPods, build_network_policy
from ddpjob_operator.manifests.parse import Pod, controller, parse_pod
from ddpjob_operator.manifests.pieces import Manifest
from ddpjob_operator.planner.actions import (
    CreateNetworkPolicy,
    CreateRendezvous,
    CreateService,
    CreateWorker,
    DeleteRendezvous,
    DeleteWorker,
)
from ddpjob_operator.planner.observed import Observed, Rejection, Rendezvous
from ddpjob_operator.planner.silence import silent_workers
from ddpjob_operator.rendezvous.session import RendezvousSession
from ddpjob_operator.rendezvous.session_pool import Key, ServiceId, SessionPool
from ddpjob_operator.request import Request
from ddpjob_protocol.keys.credentials import JobKey
from ddpjob_protocol.messages.control import Report

Create = CreateNetworkPolicy | CreateService | CreateRendezvous | CreateWorker
Delete = DeleteRendezvous | DeleteWorker

log = logging.getLogger("ddpjob.cluster")


@dataclasses.dataclass(frozen=True)
class Observation:
    """Everything that a pass knows of a job."""

    observed: Observed
    session: RendezvousSession | None  # session with the observed rendezvous service
    pods: Mapping[str, Pod]  # by name
    key: JobKey  # for the pods that this pass creates


class Cluster:
    """A reader and writer of the objects of all jobs."""

    def __init__(
        self,
        kube: ApiServer,
        agent_image: str,
        namespaces: tuple[str, ...],
        sessions: SessionPool,
        on_change: Callable[[str, str], None],
        keys: JobKeys,
        clock: Callable[[], float] = time.monotonic,
        operator_pods: OperatorPods | None = None,
    ) -> None:
        """With `operator_pods` each job gets a NetworkPolicy."""
        self._kube = kube
        self._keys = keys
        self._agent_image = agent_image
        scopes = {each: f"/namespaces/{each}" for each in namespaces} or {"": ""}
        self.jobs = Jobs(kube, scopes.values())
        self._operator_pods = operator_pods
        policies = operator_pods is not None
        self._children = Children(kube, scopes, on_change, clock, policies=policies)
        self._sessions = sessions
        self._node_leases = NodeLeases(kube, clock)
        self.fresh_pods = FreshPods(kube, self._children)
        self._secrets = PodSecrets(kube, clock)

    @property
    def reflectors(self) -> list[Reflector[Any]]:
        """All reflectors, for the controller to run and the health checks to watch."""
        return self._children.reflectors

    # --- reading ----------------------------------------------------------------------------------

    async def observe(self, job: DDPJob, spec_problems: str = "") -> Observation:
        """Return the input of the planner, and what is needed to execute the plan."""
        pods = self._children.pods(job)
        workers = tuple(pod.worker for pod in pods if pod.worker)
        claim = await single_node_claim(self._kube, job, workers)
        key = self._keys.key_of(job.metadata.uid, pods)
        alive = [p.rendezvous for p in pods if p.rendezvous and p.live]
        newest = max(alive, key=lambda rendezvous: rendezvous.term, default=None)
        useless = [
            pod.rendezvous.term
            for pod in pods
            if pod.rendezvous and not pod.deleting and not (pod.live and pod.rendezvous == newest)
        ]
        session = self._session(job, newest, key)
        report = _report(session, newest)
        observed = Observed(
            job=job,
            workers=workers,
            rendezvous=newest,
            report=report,
            invalid_report=session.invalid_report if session else "",
            silence=session.silence if session else None,
            node_unrenewed=await self._node_unrenewed(session, newest),
            unrenewed_nodes=await self._node_leases.all_unrenewed(
                silent_workers.nodes_to_ask(job, report, workers)
            ),
            terminated_terms=tuple(useless),
            service=self._children.has_service(job),
            network_policy=self._children.has_policy(job),
            single_node_claim=claim,
            spec_problems=spec_problems,
            agent_image=self._agent_image,
            key=key.fingerprint,
        )
        return Observation(observed, session, {pod.name: pod for pod in pods}, key)

    def forget(self, key: Key) -> None:
        """End the session of a job that no longer exists."""
        self._sessions.close(key)
        self._secrets.forget(key)

    async def _node_unrenewed(
        self, session: RendezvousSession | None, newest: Rendezvous | None
    ) -> float | None:
        """Return for how long the node of a service that does not answer has not renewed its Lease."""
        if session is None or newest is None or not newest.node or not session.unanswered:
            return None
        return await self._node_leases.unrenewed(newest.node)

    def _session(
        self, job: DDPJob, newest: Rendezvous | None, job_key: JobKey
    ) -> RendezvousSession | None:
        """Return the session with this service; keep the session while the service is not ready."""
        key = Key(job.metadata.namespace, job.metadata.name)
        if newest is None:
            self._sessions.close(key)
        elif newest.ready:
            service = ServiceId(job.metadata.uid, newest.term, job_key.operator, newest.address)
            self._sessions.open(key, service)
        return self._sessions.get(key)

    # --- writing ----------------------------------------------------------------------------------

    async def create(self, job: DDPJob, action: Create, key: JobKey) -> Rejection | None:
        """Create a child, and the Secret of a pod after it; return a rejection if that failed."""
        plural, manifest = self._manifest(job, action, key)
        path = path_of(job.metadata.namespace, plural)
        name = manifest["metadata"]["name"]
        try:
            created = await post(self._kube, path, manifest)
        except (ApiError, UnreachableError) as error:
            if isinstance(error, ApiError) and error.exists:
                return await self._already_there(job, plural, name, path, key)
            return rejection_of(name, error, "creating")
        self._children.put(plural, created)
        return await self._complete(job, plural, created, key)

    def without_secret(self, job: DDPJob, seen: Observation) -> list[Pod]:
        """Return the observed pods that may wait for a Secret, such as those of an earlier operator."""
        return self._secrets.missing(job, seen.pods.values(), seen.key)

    async def create_secret(self, job: DDPJob, pod: Pod, key: JobKey) -> Rejection | None:
        """Create the Secret of a pod unless it exists; return a rejection if that failed."""
        return await self._secrets.create(job, pod, key)

    async def _complete(
        self, job: DDPJob, plural: Plural, obj: Mapping[str, Any], key: JobKey
    ) -> Rejection | None:
        """Create the Secret of a pod that has just been created."""
        pod = parse_pod(obj) if plural == "pods" else None
        if pod is None or not needs_secret(pod, key):
            return None
        return await self._secrets.create(job, pod, key)

    def _manifest(self, job: DDPJob, action: Create, key: JobKey) -> tuple[Plural, Manifest]:
        image = job.status.agent_image or self._agent_image
        match action:
            case CreateNetworkPolicy():
                assert self._operator_pods is not None  # else no job lacks a policy
                return "networkpolicies", build_network_policy(job, self._operator_pods)
            case CreateService():
                return "services", build.build_service(job)
            case CreateRendezvous():
                return "pods", build.build_rendezvous(
                    job, action, image, key, new_secret_name(action.name)
                )
            case CreateWorker():
                return "pods", build.build_worker(
                    job, action, image, key, new_secret_name(action.name)
                )

    async def _already_there(
        self, job: DDPJob, plural: Plural, name: str, path: str, key: JobKey
    ) -> Rejection | None:
        """Adopt the job's own object from an unanswered create; reject a foreign object."""
        try:
            found = await self._kube.send(Request("GET", f"{path}/{name}"))
        except (ApiError, UnreachableError) as error:
            return rejection_of(name, error, "creating")
        if controller(found["metadata"]) == job.metadata.uid:
            self._children.learn(plural, found)
            return await self._complete(job, plural, found, key)
        return Rejection(name, Reason.NAME_TAKEN, describe_foreign(job, plural, found["metadata"]))

    async def delete(self, job: DDPJob, seen: Observation, action: Delete) -> Rejection | None:
        """Delete a pod as it was observed, with its grace period; return a rejection if that failed.

        A pod that has changed since stays: the next pass decides again.
        """
        name = _pod_name(job, action)
        pod = seen.pods.get(name)
        if pod is None:
            return None
        path = f"{path_of(job.metadata.namespace, 'pods')}/{name}"
        unchanged = {"uid": pod.uid, "resourceVersion": pod.version}
        body = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": unchanged}
        try:
            deleted = await self._kube.send(Request("DELETE", path, body=body))
        except (ApiError, UnreachableError) as error:
            if isinstance(error, ApiError) and error.status in (NOT_FOUND, CONFLICT):
                return await self.fresh_pods.read(pod)
            return rejection_of(name, error, "deleting")
        if deleted.get("kind") == "Pod" and deleted["metadata"].get("deletionTimestamp"):
            self._children.put("pods", deleted)
        return None


def _report(session: RendezvousSession | None, newest: Rendezvous | None) -> Report | None:
    """Return the report, or None if it comes from another service than the newest one."""
    report = session.report if session else None
    if report is None or newest is None or (newest.ready and report.term != newest.term):
        return None
    return report


def _pod_name(job: DDPJob, action: Delete) -> str:
    if isinstance(action, DeleteWorker):
        return action.name
    return constants.rendezvous_name(job.metadata.name, action.term)
