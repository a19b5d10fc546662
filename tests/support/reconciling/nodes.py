"""Scheduler, kubelets and garbage collector of a test: they act through the API, turn by turn.

Agents live in running worker pods, a rendezvous service in a ready rendezvous pod.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from ddpjob_operator.api import constants
from ddpjob_operator.kube.interface import NOT_FOUND, ApiError, ApiServer
from ddpjob_operator.rendezvous.client import ServiceUnavailableError, Transport
from ddpjob_operator.rendezvous.session_pool import Key
from ddpjob_operator.request import Request
from ddpjob_protocol.keys.credentials import JobKey
from ddpjob_protocol.messages.membership import Membership
from support.reconciling.training import OVER, Service
from support.reconciling.wire import Wire

JSON = dict[str, Any]
NO_NODE = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
    "lastTransitionTime": "2026-01-02T03:04:05Z",
}
LATE = (404, 409, 422)  # another client was faster: look again in the next turn


class Nodes:
    """All that a cluster does by itself."""

    def __init__(self, kube: ApiServer, namespaces: Iterable[str]) -> None:
        self._kube = kube
        self._namespaces = tuple(namespaces)
        self.capacity = 100  # pods
        self.now: Callable[[], float] = time.time
        self.silent: set[str] = set()  # pods whose node does nothing about them
        self.mute: set[str] = set()  # pods whose agents send nothing to the service
        self.cut: set[Key] = set()  # jobs whose services the operator does not reach
        self.services: dict[Key, Service] = {}
        self.keys: dict[str, str] = {}  # content of the Secrets of running pods, by UID
        self.deleted_jobs: set[str] = set()  # UIDs
        self._carried: dict[Key, Membership] = {}  # what the agents hold, without a service

    async def turn(self) -> None:
        """Scheduler, kubelet and agents act once."""
        for namespace in self._namespaces:
            base = f"/api/v1/namespaces/{namespace}"
            query = {"labelSelector": constants.LABEL_JOB}
            listed = await self._kube.send(Request("GET", f"{base}/pods", query=query))
            pods = [{"apiVersion": "v1", "kind": "Pod", **pod} for pod in listed["items"]]
            free = self.capacity - sum("nodeName" in pod["spec"] for pod in pods)
            for pod in pods:
                try:
                    free -= await self._act(f"{base}/pods/{pod['metadata']['name']}", pod, free)
                except ApiError as error:
                    if error.status not in LATE:
                        raise
            await self._train(namespace, pods)
            if self.deleted_jobs:
                services = await self._kube.send(Request("GET", f"{base}/services", query=query))
                for each in filter(self._is_orphan, services["items"]):
                    await self._kube.send(Request("DELETE", f"{base}/services/{name_of(each)}"))

    async def _act(self, path: str, pod: JSON, free: int) -> bool:
        """Do the next change of one pod; return whether it has taken a node."""
        metadata, phase = pod["metadata"], pod["status"].get("phase")
        if "deletionTimestamp" in metadata:
            if metadata["name"] not in self.silent:
                await self.remove(path, metadata["uid"])
        elif self._is_orphan(pod):
            await self._kube.send(Request("DELETE", path))
        elif "nodeName" not in pod["spec"]:
            if free > 0:
                await self._bind(path, pod)
                return True
            if pod["status"].get("conditions") != [NO_NODE]:
                await self.set_status(path, pod, {"conditions": [NO_NODE]})
        elif phase == "Pending" and metadata["name"] not in self.silent:
            if await self._mount(pod):
                await self.set_status(path, pod, running(pod))
        elif phase == "Running" and (end := self._end(pod)):
            await self.set_status(path, pod, end)
        return False

    async def remove(self, path: str, uid: str) -> None:
        """Remove the pod, by its node's report or because its node is lost."""
        body = {
            "kind": "DeleteOptions",
            "apiVersion": "v1",
            "gracePeriodSeconds": 0,
            "preconditions": {"uid": uid},
        }
        await self._kube.send(Request("DELETE", path, body=body))

    async def set_status(self, path: str, pod: JSON, status: JSON) -> None:
        """Set the status as a kubelet does."""
        body = {**pod, "status": {**pod["status"], **status}}
        await self._kube.send(Request("PUT", f"{path}/status", body=body))

    async def _bind(self, path: str, pod: JSON) -> None:
        target = {"apiVersion": "v1", "kind": "Node", "name": f"node-{name_of(pod)}"}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name_of(pod)}}
        await self._kube.send(
            Request("POST", f"{path}/binding", body={**binding, "target": target})
        )

    def _is_orphan(self, obj: JSON) -> bool:
        owners = obj["metadata"].get("ownerReferences", ())
        return bool(self.deleted_jobs.intersection(owner["uid"] for owner in owners))

    # --- agents and rendezvous services -----------------------------------------------------------

    async def _train(self, namespace: str, pods: list[JSON]) -> None:
        workers: defaultdict[Key, dict[str, JSON]] = defaultdict(dict)
        rendezvous: dict[Key, JSON] = {}
        for pod in pods:
            labels = pod["metadata"]["labels"]
            key = Key(namespace, labels[constants.LABEL_JOB])
            alive = pod["status"].get("phase") == "Running"
            if alive:
                assert await self._mount(pod), f"{name_of(pod)} runs without its Secret"
            role = labels.get(constants.LABEL_ROLE)
            if alive and role == constants.ROLE_WORKER:
                workers[key][name_of(pod)] = pod
            elif alive and role and "deletionTimestamp" not in pod["metadata"]:
                rendezvous[key] = pod
        for key, service in list(self.services.items()):
            if key.namespace == namespace and service.pod != uid_of(rendezvous.get(key)):
                self._close(key)
        for key in [key for key in self._carried if key.namespace == namespace]:
            if not workers[key]:
                del self._carried[key]
        for key, pod in rendezvous.items():
            if key not in self.services:
                term = int(pod["metadata"]["labels"][constants.LABEL_TERM])
                carried = self._carried.pop(key, None)
                self.services[key] = Service(
                    term,
                    JobKey.parse(self.keys[uid_of(pod)]),
                    carried,
                    pod=uid_of(pod),
                    now=self.now,
                )
            leaving = {
                n for n, each in workers[key].items() if "deletionTimestamp" in each["metadata"]
            }
            strangers = {
                name for name, each in workers[key].items()
                if self.keys[uid_of(each)] != self.services[key].key.worker_keys(name).to_text()
            }  # fmt: skip
            self.services[key].turn(workers[key].keys() - leaving - self.mute - strangers, leaving)

    async def _mount(self, pod: JSON) -> bool:
        """Read the pod's Secret, as its node does; return whether the pod has it."""
        if uid_of(pod) in self.keys:
            return True
        volumes = pod["spec"].get("volumes", ())
        names = [each["secret"]["secretName"] for each in volumes if "secret" in each]
        if not names:
            return False  # not a pod of a job
        [name] = names
        path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/secrets/{name}"
        try:
            secret = await self._kube.send(Request("GET", path))
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise
            return False
        self.keys[uid_of(pod)] = base64.b64decode(secret["data"]["keys"]).decode()
        return True

    def restart_service(self, key: Key) -> None:
        """Restart its container: the next boot, which knows the state of the agents."""
        old = self.services[key]
        old.close()
        report = old.report
        self.services[key] = Service(
            report.term, old.key, report.membership, boot=report.boot + 1, pod=old.pod, now=self.now
        )

    def _close(self, key: Key) -> None:
        service = self.services.pop(key)
        service.close()
        if service.report.membership is not None:
            self._carried[key] = service.report.membership

    def _end(self, pod: JSON) -> JSON | None:
        """Return the end of the agent's container once its service reports the end of the job."""
        labels = pod["metadata"]["labels"]
        service = self.services.get(Key(pod["metadata"]["namespace"], labels[constants.LABEL_JOB]))
        over = service is not None and service.report.state in OVER
        if service is None or not over or labels[constants.LABEL_ROLE] != constants.ROLE_WORKER:
            return None
        return ended(pod, 0 if service.report.failure is None else 1)

    def way(self, key: Key, wire: Wire) -> Transport:
        """Return the operator's transport to the job's service; an expectation counts as a write."""

        async def send(request: Request) -> Any:
            if key in self.cut:
                await asyncio.sleep(request.timeout or 0)
                raise ServiceUnavailableError("no answer in time")
            if key not in self.services:
                raise ServiceUnavailableError("nothing listens there")
            answer = await self.services[key].answer(request)
            if key in self.cut:
                raise ServiceUnavailableError("no answer in time")
            return answer

        return functools.partial(wire.reach, send)


def name_of(obj: JSON) -> str:
    name: str = obj["metadata"]["name"]
    return name


def uid_of(obj: JSON | None) -> str:
    uid: str = obj["metadata"]["uid"] if obj else ""
    return uid


def key_of(pod: JSON) -> str:
    """The fingerprint of the job's key."""
    found: str = pod["metadata"]["labels"][constants.LABEL_KEY]
    return found


def running(pod: JSON) -> JSON:
    """Status of a pod all of whose containers run."""
    conditions = [{"type": each, "status": "True"} for each in ("PodScheduled", "Ready")]
    return {"phase": "Running", "conditions": conditions, **containers(pod, {"running": {}})}


def ended(pod: JSON, code: int, message: str = "") -> JSON:
    """Status of a pod whose container has ended."""
    reason = "Error" if code else "Completed"
    state = {"terminated": {"exitCode": code, "reason": reason, "message": message}}
    return {"phase": "Failed" if code else "Succeeded", "conditions": [], **containers(pod, state)}


def containers(pod: JSON, state: JSON) -> JSON:
    common = {"image": "x", "imageID": "x", "restartCount": 0, "ready": "running" in state}
    return {
        "containerStatuses": [
            {"name": container["name"], "state": state, **common}
            for container in pod["spec"]["containers"]
        ]
    }
