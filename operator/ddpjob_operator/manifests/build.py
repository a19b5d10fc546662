"""Builds the objects of a job on a cluster: the Service, the rendezvous pod, the worker pods.

A worker pod is the pod of its group's template. An init container copies the agent into the pod, and the agent
becomes the first process of the container that trains. Defaults fill the user's empty
fields. The user's values stay, except names, labels, owner and restart policy.

May not: call the API server, or validate a manifest; the API server validates every manifest.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

from ddpjob_operator.api import constants
from ddpjob_operator.api.spec import DDPJob
from ddpjob_operator.api.spec.pinned_fields import revision
from ddpjob_operator.api.spec.pod.pod_template import trainer
from ddpjob_operator.api.spec.pod.strategic_merge import without_nulls
from ddpjob_operator.api.spec.resources import whole_amount
from ddpjob_operator.api.spec.sagemaker import BASE, SageMaker
from ddpjob_operator.api.spec.worker_groups import Group
from ddpjob_operator.manifests.environment import (
    agent_environment,
    device_environment,
    network_environment,
    sagemaker_environment,
)
from ddpjob_operator.manifests.metadata import object_metadata, pod_metadata
from ddpjob_operator.manifests.network import dns_policy
from ddpjob_operator.manifests.network_policy import isolation_labels
from ddpjob_operator.manifests.pieces import (
    Manifest,
    as_list,
    as_mapping,
    small_resources,
    texts,
    tolerate_unreachable,
    variables,
)
from ddpjob_operator.manifests.scheduling import MAY_BE_EVICTED, inherited, priority
from ddpjob_operator.manifests.security import (
    CONFINED,
    OURS,
    SECCOMP,
    runs_as_root,
    worker_security_context,
)
from ddpjob_operator.planner.actions import CreateRendezvous, CreateWorker
from ddpjob_protocol.addresses import join_address
from ddpjob_protocol.environment import (
    ENV_ADDRESS,
    ENV_GRACE_SECONDS,
    ENV_JOB_UID,
    ENV_SERVICE,
    ENV_SNAPSHOT_BYTES,
    ENV_SNAPSHOT_DIR,
    ENV_TOKEN,
    ENV_WORKER,
    GRACE_SECONDS,
)

AGENT_IN_IMAGE = "/opt/ddpjob/agent.pyz"
AGENT_FOLDER = "/ddpjob"
SNAPSHOT_FOLDER = "/snapshots"
STATE_FOLDER = "/state"
# Seconds until the rendezvous pod is evicted from a node that the control plane has lost.
RENDEZVOUS_TOLERATION_SECONDS = 5


def build_service(job: DDPJob) -> Manifest:
    """Return the Service through which workers find the current rendezvous pod."""
    selector = {
        constants.LABEL_JOB: job.metadata.name,
        constants.LABEL_ROLE: constants.ROLE_RENDEZVOUS,
    }
    port = {
        "name": "rendezvous",
        "port": constants.SERVICE_PORT,
        "targetPort": constants.SERVICE_PORT,
    }
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": object_metadata(job, constants.service_name(job.metadata.name), selector),
        "spec": {"selector": selector, "ports": [port]},
    }


def build_rendezvous(job: DDPJob, action: CreateRendezvous, image: str, token: str) -> Manifest:
    """Return the pod of the rendezvous service, with the scheduling fields of the workers."""
    labels = {
        constants.LABEL_JOB: job.metadata.name,
        constants.LABEL_ROLE: constants.ROLE_RENDEZVOUS,
        constants.LABEL_TERM: str(action.term),
        constants.LABEL_REVISION: revision(job.spec),
        **isolation_labels(job),
    }
    workers = {constants.LABEL_JOB: job.metadata.name, constants.LABEL_ROLE: constants.ROLE_WORKER}
    apart = {"labelSelector": {"matchLabels": workers}, "topologyKey": "kubernetes.io/hostname"}
    container = {
        "name": "rendezvous",
        "image": image,
        "command": [
            *("python3", AGENT_IN_IMAGE, "rendezvous", "--port", str(constants.SERVICE_PORT)),
            *("--term", str(action.term), "--boot-file", f"{STATE_FOLDER}/boot"),
        ],
        "env": variables({ENV_TOKEN: token, ENV_JOB_UID: job.metadata.uid}),
        "ports": [{"name": "rendezvous", "containerPort": constants.SERVICE_PORT}],
        "readinessProbe": {
            "httpGet": {"path": "/healthz", "port": "rendezvous"},
            "periodSeconds": 2,
            "timeoutSeconds": 5,
        },
        # A process that does not answer for half a minute is restarted.
        "livenessProbe": {
            "httpGet": {"path": "/healthz", "port": "rendezvous"},
            "periodSeconds": 5,
            "timeoutSeconds": 5,
            "failureThreshold": 6,
        },
        "resources": small_resources("64Mi", cpu="1", memory="256Mi"),
        "securityContext": OURS,
        "volumeMounts": [{"name": "state", "mountPath": STATE_FOLDER}],
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    placement = inherited(job)
    tolerations = tolerate_unreachable(placement, RENDEZVOUS_TOLERATION_SECONDS)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": pod_metadata(job, action.name, labels, container["name"], own=MAY_BE_EVICTED),
        "spec": {
            **placement,
            "containers": [container],
            "volumes": [{"name": "state", "emptyDir": {}}],
            "restartPolicy": "Always",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": SECCOMP,
            "terminationGracePeriodSeconds": 5,
            "tolerations": tolerations,
            "affinity": {
                "podAntiAffinity": {
                    "preferredDuringSchedulingIgnoredDuringExecution": [
                        {"weight": 100, "podAffinityTerm": apart}
                    ]
                }
            },
        },
    }


def build_worker(job: DDPJob, action: CreateWorker, image: str, token: str) -> Manifest:
    """Return the pod of one worker; `image` is the image that contains the agent."""
    group = next(group for group in job.spec.groups() if group.name == action.group)
    template = copy.deepcopy(group.template)
    labels = {
        constants.LABEL_JOB: job.metadata.name,
        constants.LABEL_ROLE: constants.ROLE_WORKER,
        constants.LABEL_GROUP: action.group,
        constants.LABEL_INDEX: str(action.index),
        constants.LABEL_INCARNATION: str(action.incarnation),
        constants.LABEL_REVISION: revision(job.spec),
        **isolation_labels(job),
    }
    container = trainer(template).get("name")
    metadata = pod_metadata(job, action.name, labels, container, template.get("metadata"))
    spec = _worker_spec(job, group, action.name, template["spec"], image, token)
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    return {**pod, **without_nulls({"metadata": metadata, "spec": spec})}


def _worker_spec(
    job: DDPJob, group: Group, name: str, spec: Manifest, image: str, token: str
) -> Manifest:
    container = trainer({"spec": spec})
    grace = spec.get("terminationGracePeriodSeconds")
    if grace is None:
        grace = GRACE_SECONDS
    storage = job.spec.snapshot.storage
    provided: tuple[tuple[str, Manifest, str], ...] = (
        ("ddpjob-agent", {"emptyDir": {}}, AGENT_FOLDER),
        ("ddpjob-snapshots", storage or {"emptyDir": {}}, SNAPSHOT_FOLDER),
        ("ddpjob-shm", {"emptyDir": {"medium": "Memory"}}, "/dev/shm"),  # noqa: S108 - for NCCL
        ("ddpjob-tmp", {"emptyDir": {}}, "/tmp"),  # noqa: S108 - private to the pod
        *(_sagemaker_volumes(job.spec.sagemaker) if job.spec.sagemaker else ()),
    )
    mounts = as_list(container.get("volumeMounts"))
    taken = {path.rstrip("/") for path in texts(mounts, "mountPath")}
    volumes = as_list(spec.get("volumes"))
    for volume, source, path in provided:
        if path not in taken or path == AGENT_FOLDER:  # the API server rejects duplicates
            volumes.append({**source, "name": volume})
            mounts.append({"name": volume, "mountPath": path})
    container.update(
        command=["python3", f"{AGENT_FOLDER}/agent.pyz", "worker", "--"],
        args=list(group.command),
        env=_environment(
            job,
            group,
            name,
            token,
            grace,
            _size_limit(volumes, mounts),
            as_list(container.get("env")),
        ),
        volumeMounts=mounts,
    )
    container.setdefault("securityContext", CONFINED)
    container.setdefault("terminationMessagePolicy", "FallbackToLogsOnError")
    if group.gpus:
        limits = {**as_mapping(as_mapping(container.get("resources")).get("limits"))}
        limits[job.spec.gpu_resource] = str(group.gpus)
        container["resources"] = {**as_mapping(container.get("resources")), "limits": limits}
    install = {
        "name": "ddpjob-agent",
        "image": image,
        "command": ["cp", AGENT_IN_IMAGE, f"{AGENT_FOLDER}/agent.pyz"],
        "resources": small_resources("16Mi", cpu="500m", memory="64Mi"),
        "securityContext": {**OURS, "runAsNonRoot": not runs_as_root(spec)},
        "volumeMounts": [{"name": "ddpjob-agent", "mountPath": AGENT_FOLDER}],
    }
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        **priority(job),
        **spec,
        **dns_policy(spec),
        "securityContext": worker_security_context(job, spec),
        "terminationGracePeriodSeconds": grace,
        "tolerations": tolerate_unreachable(spec, int(job.spec.elastic.orphan_seconds)),
        "initContainers": [install, *as_list(spec.get("initContainers"))],
        "volumes": volumes,
        "restartPolicy": "Never",
    }


def _sagemaker_volumes(sagemaker: SageMaker) -> Iterator[tuple[str, Manifest, str]]:
    yield "ddpjob-sagemaker", {"emptyDir": {}}, BASE
    if sagemaker.model is not None:
        yield "ddpjob-model", sagemaker.model, f"{BASE}/model"
    for channel in sagemaker.channels:
        yield f"ddpjob-channel-{channel.name}", channel.volume, f"{BASE}/input/data/{channel.name}"


def _size_limit(volumes: Sequence[Any], mounts: Sequence[Any]) -> int | None:
    """Return the limit in bytes of an emptyDir for snapshots, at which kubelet evicts the pod."""
    names: set[str] = set()
    for mount in map(as_mapping, mounts):
        if any(path.rstrip("/") == SNAPSHOT_FOLDER for path in texts([mount], "mountPath")):
            names.update(texts([mount], "name"))
    found = (as_mapping(each) for each in volumes if names.intersection(texts([each], "name")))
    limits = (as_mapping(each.get("emptyDir")).get("sizeLimit") for each in found)
    return next(map(whole_amount, limits), None)


def _environment(
    job: DDPJob,
    group: Group,
    name: str,
    token: str,
    grace: Any,
    snapshot_bytes: int | None,
    user: list[Any],
) -> list[Manifest]:
    service = f"{constants.service_name(job.metadata.name)}.{job.metadata.namespace}.svc"
    ours = variables(
        {
            **agent_environment(job, group),
            ENV_WORKER: name,
            ENV_SERVICE: join_address(service, constants.SERVICE_PORT),
            ENV_TOKEN: token,
            ENV_GRACE_SECONDS: str(grace),
            ENV_SNAPSHOT_DIR: f"{SNAPSHOT_FOLDER}/{job.metadata.name}",
            **({} if snapshot_bytes is None else {ENV_SNAPSHOT_BYTES: str(snapshot_bytes)}),
        }
    )
    source = {"fieldRef": {"fieldPath": "status.podIP"}}
    ours.append({"name": ENV_ADDRESS, "valueFrom": source})
    taken, reserved = set(texts(user, "name")), set(texts(ours, "name"))
    offered = {
        **network_environment(job),
        **device_environment(job),
        **sagemaker_environment(job, group, BASE),
    }
    offered = {name: value for name, value in offered.items() if name not in taken}
    kept = [each for each in user if not reserved.intersection(texts([each], "name"))]
    return [*variables(offered), *kept, *ours]
