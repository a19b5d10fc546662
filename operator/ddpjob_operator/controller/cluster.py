"""Reads and changes the objects of a job in the cluster.

Reflectors supply Pods and Services. Every pass reads the job itself again. Every write may be
repeated safely: names are deterministic, and deletions carry the UID.
May not: decide what `plan` decides.
"""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

from ddpjob_operator.api import constants
from ddpjob_operator.api.constants import Reason
from ddpjob_operator.api.spec import DDPJob
from ddpjob_operator.kube.interface import ApiError, ApiServer, UnreachableError, pages
from ddpjob_operator.kube.reflector import PAGE, Reflector
from ddpjob_operator.manifests import build
from ddpjob_operator.manifests.parse import (
    Pod,
    RendezvousService,
    controller,
    parse_pod,
    parse_service,
)
from ddpjob_operator.manifests.pieces import Manifest
from ddpjob_operator.planner.actions import (
    CreateRendezvous,
    CreateService,
    CreateWorker,
    DeleteRendezvous,
    DeleteWorker,
    Event,
)
from ddpjob_operator.planner.observed import Observed, Rejection

Create = CreateService | CreateRendezvous | CreateWorker
Delete = DeleteRendezvous | DeleteWorker
NOT_FOUND, CONFLICT = 404, 409
MAX_EVENT_MESSAGE = 1024  # characters; limit of the API server
REFUSED = (400, 403, 422)  # an unchanged retry gets the same answer

T = TypeVar("T", Pod, RendezvousService)

log = logging.getLogger("ddpjob.cluster")


class Cluster:
    """A reader and writer of the objects of all jobs."""

    def __init__(
        self,
        kube: ApiServer,
        agent_image: str,
        namespaces: tuple[str, ...],
        on_change: Callable[[str, str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kube = kube
        self._agent_image = agent_image
        self._scopes = {each: f"/namespaces/{each}" for each in namespaces} or {"": ""}

        def changed(thing: Pod | RendezvousService) -> None:
            on_change(thing.namespace, thing.job)

        def follow(plural: str, trim: Callable[[dict[str, Any]], T]) -> dict[str, Reflector[T]]:
            return {
                namespace: Reflector(
                    kube,
                    f"/api/v1{scope}/{plural}",
                    constants.LABEL_JOB,
                    trim,
                    changed,
                    clock=clock,
                )
                for namespace, scope in self._scopes.items()
            }

        self._pods = follow("pods", parse_pod)
        self._addresses = follow("services", parse_service)

    @property
    def reflectors(self) -> list[Reflector[Any]]:
        """All reflectors, for the controller to run and the health checks to watch."""
        return [*self._pods.values(), *self._addresses.values()]

    # --- reading ----------------------------------------------------------------------------------

    async def job(self, namespace: str, name: str) -> dict[str, Any] | None:
        """Read a job from the API server; return None if the job does not exist."""
        try:
            found: dict[str, Any] = await self._kube.request("GET", _job(namespace, name))
        except ApiError as error:
            if error.status == NOT_FOUND:
                return None
            raise
        return found

    async def jobs(self) -> list[tuple[str, str]]:
        """List the namespace and name of every job."""
        found = []
        for scope in self._scopes.values():
            path = f"/apis/{constants.API_VERSION}{scope}/{constants.PLURAL}"
            async for page in pages(self._kube, path, {"limit": PAGE}):
                found += [
                    (each["metadata"]["namespace"], each["metadata"]["name"])
                    for each in page["items"]
                ]
        return found

    async def observe(self, job: DDPJob) -> Observed:
        """Return the observed objects of the job, without the report."""
        pods = self._pods_of(job)
        alive = [p.rendezvous for p in pods if p.rendezvous and p.live]
        ended = [p for p in pods if p.rendezvous and not p.live and not p.deleting]
        newest = max(alive, key=lambda rendezvous: rendezvous.term, default=None)
        return Observed(
            job=job,
            workers=tuple(pod.worker for pod in pods if pod.worker),
            rendezvous=newest,
            terminated_terms=tuple(p.rendezvous.term for p in ended if p.rendezvous),
            service=any(a.owner == job.metadata.uid for a in _of(self._addresses, job)),
            single_node_claim=await self._single_node_claim(job),
        )

    def token(self, job: DDPJob) -> str:
        """Return the token of the job's pods, or a new token if the job has no pod."""
        held = (pod.token for pod in self._pods_of(job) if pod.token)
        return next(held, None) or secrets.token_urlsafe(32)

    async def _single_node_claim(self, job: DDPJob) -> str:
        source = (job.spec.snapshot.storage or {}).get("persistentVolumeClaim")
        claim = source.get("claimName") if isinstance(source, Mapping) else None
        nodes = {p.worker.node for p in self._pods_of(job) if p.worker and p.worker.live}
        if not claim or len(nodes - {None}) < 2:
            return ""
        path = f"/api/v1/namespaces/{job.metadata.namespace}/persistentvolumeclaims/{claim}"
        try:
            found = await self._kube.request("GET", path)
        except ApiError as error:
            if error.status in (NOT_FOUND, *REFUSED):
                return ""  # the scheduler reports a missing claim
            raise
        modes = set(found["spec"].get("accessModes") or ())
        return "" if modes & {"ReadWriteMany", "ReadOnlyMany"} else str(claim)

    def _pods_of(self, job: DDPJob) -> list[Pod]:
        return [p for p in _of(self._pods, job) if p.owner == job.metadata.uid]

    # --- writing ----------------------------------------------------------------------------------

    async def create(self, job: DDPJob, action: Create, token: str) -> Rejection | None:
        """Create a child; return a rejection if a retry cannot succeed."""
        kind, manifest = self._manifest(job, action, token)
        path = f"/api/v1/namespaces/{job.metadata.namespace}/{kind}"
        name = manifest["metadata"]["name"]
        namespace = job.metadata.namespace
        pods, addresses = _scoped(self._pods, namespace), _scoped(self._addresses, namespace)
        reflector: Reflector[Any] = pods if kind == "pods" else addresses
        try:
            query = {"fieldValidation": "Strict"}
            created = await self._kube.request("POST", path, query=query, body=manifest)
        except ApiError as error:
            if error.status == CONFLICT:
                return await self._already_there(job, f"{path}/{name}", reflector)
            if error.status not in REFUSED:
                raise
            return Rejection(name, _rejection_reason(error), error.message)
        reflector.put(created)
        return None

    def _manifest(self, job: DDPJob, action: Create, token: str) -> tuple[str, Manifest]:
        match action:
            case CreateService():
                return "services", build.build_service(job)
            case CreateRendezvous():
                return "pods", build.build_rendezvous(job, action, self._agent_image, token)
            case CreateWorker():
                return "pods", build.build_worker(job, action, self._agent_image, token)

    async def _already_there(
        self, job: DDPJob, path: str, reflector: Reflector[Any]
    ) -> Rejection | None:
        """Adopt the job's own object from an unanswered create; reject a foreign object."""
        try:
            found = await self._kube.request("GET", path)
        except ApiError as error:
            if error.status == NOT_FOUND:
                return None
            raise
        name = found["metadata"]["name"]
        if controller(found["metadata"]) == job.metadata.uid:
            reflector.put(found)
            return None
        text = f"'{name}' exists and does not belong to this job; delete or rename it"
        labels = found["metadata"].get("labels") or {}
        if controller(found["metadata"]) and labels.get(constants.LABEL_JOB) == job.metadata.name:
            text = f"'{name}' of an earlier job of this name still exists; waiting for its deletion"
        return Rejection(name, Reason.POD_REFUSED, text)

    async def delete(self, job: DDPJob, action: Delete) -> None:
        """Delete a pod with its grace period."""
        if isinstance(action, DeleteWorker):
            name = action.name
        else:
            name = constants.rendezvous_name(job.metadata.name, action.term)
        uid = next((pod.uid for pod in self._pods_of(job) if pod.name == name), None)
        if uid is None:
            return
        path = f"/api/v1/namespaces/{job.metadata.namespace}/pods/{name}"
        body = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": uid}}
        try:
            deleted = await self._kube.request("DELETE", path, body=body)
        except ApiError as error:
            if error.status not in (NOT_FOUND, CONFLICT):
                raise
        else:
            if deleted.get("kind") == "Pod" and deleted["metadata"].get("deletionTimestamp"):
                _scoped(self._pods, job.metadata.namespace).put(deleted)

    async def write_status(self, raw: Mapping[str, Any], status: Mapping[str, Any]) -> None:
        """Write the status of a job; raise ApiError 409 if the job has changed since the read."""
        metadata = raw["metadata"]
        path = _job(metadata["namespace"], metadata["name"]) + "/status"
        await self._kube.request("PUT", path, body={**raw, "status": status})

    async def emit(self, raw: Mapping[str, Any], event: Event) -> None:
        """Post an event; if the post fails, log a warning."""
        metadata, now = raw["metadata"], datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        about = {
            "apiVersion": constants.API_VERSION,
            "kind": constants.KIND,
            **{field: metadata[field] for field in ("name", "namespace", "uid")},
        }
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                "generateName": f"{metadata['name']}-",
                "namespace": metadata["namespace"],
            },
            "involvedObject": about,
            "reason": event.reason,
            "message": event.message[:MAX_EVENT_MESSAGE],
            "type": "Warning" if event.warning else "Normal",
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
            "source": {"component": "ddpjob-operator"},
            "reportingComponent": "ddpjob.io/operator",
        }
        path = f"/api/v1/namespaces/{metadata['namespace']}/events"
        try:
            await self._kube.request("POST", path, body=body)
        except (ApiError, UnreachableError) as error:
            log.warning("cannot post event %s: %s", event.reason, error)


def _scoped(reflectors: Mapping[str, Reflector[T]], namespace: str) -> Reflector[T]:
    """Return the reflector of this namespace."""
    return reflectors[namespace if namespace in reflectors else ""]


def _of(reflectors: Mapping[str, Reflector[T]], job: DDPJob) -> tuple[T, ...]:
    namespace = job.metadata.namespace
    return _scoped(reflectors, namespace).by_job(namespace, job.metadata.name)


def _job(namespace: str, name: str) -> str:
    return f"/apis/{constants.API_VERSION}/namespaces/{namespace}/{constants.PLURAL}/{name}"


def _rejection_reason(error: ApiError) -> Reason:
    if re.search("exceeded quota|failed quota", error.message):
        return Reason.QUOTA_EXCEEDED
    return Reason.POD_REFUSED
