"""Manifests as `manifests` builds them, and pods as the API server has them, with kubelets' words."""

from __future__ import annotations

from typing import Any

from ddpjob_operator.api.constants import rendezvous_name, worker_name
from ddpjob_operator.api.spec import DDPJob
from ddpjob_operator.manifests.build import build_rendezvous, build_worker
from ddpjob_operator.manifests.parse import parse_pod
from ddpjob_operator.planner.actions import CreateRendezvous, CreateWorker
from ddpjob_operator.planner.observed import Worker
from support.builders import make_job
from support.keys import KEY

JSON = dict[str, Any]
NODE = "node-a"
PLACED = {"type": "PodScheduled", "status": "True"}
UID = "0c1de8d4-4f5b-4f0a-9d6a-3a3c3f0a7b11"
IMAGE = "ddpjob-operator"
SECRET = "keys-of-a-pod"
SIDE: JSON = {"name": "logs", "image": "logger", "command": ["tail"]}
TRAIN: JSON = {
    "name": "trainer",
    "image": "my/trainer:1",
    "command": ["torchrun"],
    "args": ["a.py"],
}


def make_cluster_job(replicas: int = 2, **spec: Any) -> DDPJob:
    """A job that an API server has accepted."""
    job = make_job(replicas, **{"image": "my/trainer:1", **spec})
    metadata = job.metadata.model_copy(update={"uid": UID, "namespace": "team"})
    return job.model_copy(update={"metadata": metadata})


def worker_manifest(job: DDPJob | None = None, index: int = 0, group: str = "worker") -> JSON:
    """The manifest of a job's worker, the second one at its index."""
    job = job or make_cluster_job()
    name = worker_name(job.metadata.name, group, index, 2)
    return build_worker(job, CreateWorker(name, group, index, 2), IMAGE, KEY, SECRET)


def template_job(template: JSON, **spec: Any) -> DDPJob:
    """A job whose main group has this template."""
    return make_cluster_job(image=None, command=None, template=template, **spec)


def templated(container: JSON | None = None, metadata: JSON | None = None, **spec: Any) -> JSON:
    """The worker of a job with this template."""
    containers = spec.pop("containers", [{**TRAIN, **(container or {})}])
    template = {"metadata": metadata or {}, "spec": {"containers": containers, **spec}}
    return worker_manifest(template_job(template))


def rendezvous_manifest(job: DDPJob | None = None, term: int = 3) -> JSON:
    """The manifest of a job's rendezvous pod."""
    job = job or make_cluster_job()
    action = CreateRendezvous(rendezvous_name(job.metadata.name, term), term)
    return build_rendezvous(job, action, IMAGE, KEY, SECRET)


def raw_pod(manifest: JSON, status: JSON, node: str | None = None, **metadata: Any) -> JSON:
    """The pod that came of it."""
    stored = {"uid": "a-pod", "resourceVersion": "42", **manifest["metadata"], **metadata}
    spec = {**manifest["spec"], **({"nodeName": node} if node else {})}
    return {**manifest, "metadata": stored, "spec": spec, "status": status}


def waiting(reason: str, message: str = "", name: str = "trainer", **more: Any) -> JSON:
    """Status of a container that does not run yet."""
    words = {"reason": reason, **({"message": message} if message else {})}
    return _container(name, {"waiting": words}, **more)


def ended(code: int, reason: str, message: str = "", name: str = "trainer") -> JSON:
    """Status of a container that has ended."""
    words: JSON = {"exitCode": code, "reason": reason, "containerID": "containerd://1f"}
    return _container(name, {"terminated": {**words, **({"message": message} if message else {})}})


def running(name: str = "trainer") -> JSON:
    """Status of a container that runs."""
    return _container(name, {"running": {"startedAt": "2026-01-02T03:04:05Z"}})


def unscheduled(message: str, reason: str = "Unschedulable") -> JSON:
    """Status of a pod without a node."""
    placed = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
    return {"phase": "Pending", "conditions": [placed]}


def phase(word: str, *containers: JSON, init: tuple[JSON, ...] | None = None, **more: Any) -> JSON:
    """Status of a pod that has a node; by default its agent is installed."""
    if init is None:
        init = (ended(0, "Completed", name="ddpjob-agent"),)
    statuses = {"initContainerStatuses": [*init], "containerStatuses": [*containers]}
    return {"phase": word, "conditions": [PLACED], **statuses, **more}


def the_worker(raw: JSON) -> Worker:
    """Return the worker that is read from a pod."""
    worker = parse_pod(raw).worker
    assert worker is not None
    return worker


def _container(name: str, state: JSON, **more: Any) -> JSON:
    image = {"image": "my/trainer:1", "imageID": "", "ready": "running" in state}
    return {"name": name, **image, "restartCount": 0, "state": state, "lastState": {}, **more}


# --- looking into a manifest ---------------------------------------------------------------------


def trainer(manifest: JSON, name: str = "trainer") -> JSON:
    """The container that trains."""
    (found,) = (each for each in manifest["spec"]["containers"] if each["name"] == name)
    assert isinstance(found, dict)
    return found


def trainer_of(job: DDPJob | None = None, group: str = "worker") -> JSON:
    """The container that trains, in the manifest of a job's worker."""
    return trainer(worker_manifest(job, group=group))


def values(container: JSON) -> dict[str, Any]:
    """The environment, each variable given once."""
    found = {each["name"]: each.get("value", each.get("valueFrom")) for each in container["env"]}
    assert len(found) == len(container["env"])
    return found


def mounts(container: JSON) -> dict[str, str]:
    """Volumes by the folder that they are mounted at, none at two."""
    found = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
    assert len(found) == len(container["volumeMounts"])
    return found


def volume(manifest: JSON, name: str) -> JSON:
    """The volume of this name, without its name."""
    (found,) = (each for each in manifest["spec"]["volumes"] if each["name"] == name)
    return {key: value for key, value in found.items() if key != "name"}
