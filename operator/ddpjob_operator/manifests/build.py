"""Builds the objects of a job on a cluster: the Service, the rendezvous pod, the worker pods.

A worker pod is the pod of its group's template. An init container copies the agent and the worker's keys into
the pod. The agent becomes the first process of the container that trains, and removes the keys. Defaults fill the user's empty
fields. The user's values stay, except names, labels, owner and restart policy.

May not: call the API server, or validate a manifest; the API server validates every manifest.
"""

from __future__ import annotations

import copy
from typing import Any

from ddpjob_operator.api import constants
from ddpjob_operator.api.spec import DDPJob
from ddpjob_operator.api.spec.pinned_fields import revision
from ddpjob_operator.api.spec.pod.pod_template import trainer
from ddpjob_operator.api.spec.pod.strategic_merge import without_nulls
from ddpjob_operator.api.spec.sagemaker import BASE
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
    grace_seconds,
    longest_grace_seconds,
    probes,
    small_resources,
    texts,
    tolerate_unreachable,
    variables,
)
from ddpjob_operator.manifests.scheduling import (
    HOST_NAME,
    MAY_BE_EVICTED,
    PREFERRED,
    inherited,
    keep_off,
    priority,
)
from ddpjob_operator.manifests.secrets import KEYS_FILE, KEYS_FOLDER, KEYS_MOUNT, keys_volume
from ddpjob_operator.manifests.security import (
    CONFINED,
    OURS,
    SECCOMP,
    runs_as_root,
    worker_security_context,
)
from ddpjob_operator.manifests.volumes import SNAPSHOT_FOLDER, sagemaker_volumes, size_limit
from ddpjob_operator.planner.actions import CreateRendezvous, CreateWorker
from ddpjob_protocol.addresses import join_address
from ddpjob_protocol.environment import (
    ENV_ADDRESS,
    ENV_GRACE_SECONDS,
    ENV_JOB_UID,
    ENV_KEYS,
    ENV_MEMORY_BYTES,
    ENV_SERVICE,
    ENV_SNAPSHOT_BYTES,
    ENV_SNAPSHOT_DIR,
    ENV_WORKER,
)
from ddpjob_protocol.keys.credentials import JobKey

AGENT_IN_IMAGE = "/opt/ddpjob/agent.pyz"
MEMORY_LIMIT = {"resourceFieldRef": {"resource": "limits.memory"}}
AGENT_FOLDER = "/ddpjob"
STATE_FOLDER = "/state"
# Seconds until the rendezvous pod is evicted from a node that the control plane has lost.
RENDEZVOUS_TOLERATION_SECONDS = 5
OWN_GRACE_SECONDS = 5  # of the rendezvous pod, after the grace period of the workers


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


def build_rendezvous(
    job: DDPJob, action: CreateRendezvous, image: str, key: JobKey, secret: str
) -> Manifest:
    """Return the pod of the rendezvous service, with the scheduling fields of the workers."""
    labels = {
        constants.LABEL_JOB: job.metadata.name,
        constants.LABEL_ROLE: constants.ROLE_RENDEZVOUS,
        constants.LABEL_TERM: str(action.term),
        constants.LABEL_REVISION: revision(job.spec),
        **isolation_labels(job),
        constants.LABEL_KEY: key.fingerprint,
    }
    workers = {constants.LABEL_JOB: job.metadata.name, constants.LABEL_ROLE: constants.ROLE_WORKER}
    term = {"labelSelector": {"matchLabels": workers}, "topologyKey": HOST_NAME}
    apart = {"weight": 100, "podAffinityTerm": term}
    container = {
        "name": "rendezvous",
        "image": image,
        "command": [
            *("python3", AGENT_IN_IMAGE, "rendezvous", "--port", str(constants.SERVICE_PORT)),
            *("--term", str(action.term), "--boot-file", f"{STATE_FOLDER}/boot"),
        ],
        "env": [
            *variables({ENV_KEYS: f"{KEYS_FOLDER}/{KEYS_FILE}", ENV_JOB_UID: job.metadata.uid}),
            {"name": ENV_MEMORY_BYTES, "valueFrom": MEMORY_LIMIT},
        ],
        "ports": [{"name": "rendezvous", "containerPort": constants.SERVICE_PORT}],
        **probes("rendezvous", OWN_GRACE_SECONDS),
        "resources": {
            **small_resources("64Mi", cpu="1", memory="256Mi"),
            **job.spec.rendezvous.resources.to_json(),
        },
        "securityContext": OURS,
        "volumeMounts": [
            {"name": "state", "mountPath": STATE_FOLDER},
            KEYS_MOUNT,
        ],
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    placement = inherited(job)
    tolerations = tolerate_unreachable(placement, RENDEZVOUS_TOLERATION_SECONDS)
    workers_grace = longest_grace_seconds(group.template["spec"] for group in job.spec.groups())
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": pod_metadata(job, action.name, labels, container["name"], own=MAY_BE_EVICTED),
        "spec": {
            **placement,
            "containers": [container],
            "volumes": [
                {"name": "state", "emptyDir": {}},
                keys_volume(secret),
            ],
            "restartPolicy": "Always",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": SECCOMP,
            # If the job is deleted, the workers need the service until they have ended.
            "terminationGracePeriodSeconds": workers_grace + OWN_GRACE_SECONDS,
            "tolerations": tolerations,
            **keep_off({"podAntiAffinity": {PREFERRED: [apart]}}, action.avoid),
        },
    }


def build_worker(
    job: DDPJob, action: CreateWorker, image: str, key: JobKey, secret: str
) -> Manifest:
    """Return the pod of one worker; `image` has the agent, `secret` names the Secret with its keys."""
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
        constants.LABEL_KEY: key.fingerprint,
    }
    container = trainer(template).get("name")
    metadata = pod_metadata(job, action.name, labels, container, template.get("metadata"))
    spec = _worker_spec(job, group, action.name, template["spec"], image, secret)
    spec |= keep_off(spec.get("affinity"), action.avoid)
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    return {**pod, **without_nulls({"metadata": metadata, "spec": spec})}


def _worker_spec(
    job: DDPJob, group: Group, name: str, spec: Manifest, image: str, secret: str
) -> Manifest:
    container = trainer({"spec": spec})
    grace = grace_seconds(spec)
    storage = job.spec.snapshot.storage
    provided: tuple[tuple[str, Manifest, str], ...] = (
        ("ddpjob-agent", {"emptyDir": {}}, AGENT_FOLDER),
        ("ddpjob-snapshots", storage or {"emptyDir": {}}, SNAPSHOT_FOLDER),
        ("ddpjob-shm", {"emptyDir": {"medium": "Memory"}}, "/dev/shm"),  # noqa: S108 - for NCCL
        ("ddpjob-tmp", {"emptyDir": {}}, "/tmp"),  # noqa: S108 - private to the pod
        *(sagemaker_volumes(job.spec.sagemaker) if job.spec.sagemaker else ()),
    )
    mounts = as_list(container.get("volumeMounts"))
    taken = {path.rstrip("/") for path in texts(mounts, "mountPath")}
    volumes = as_list(spec.get("volumes"))
    for volume, source, path in provided:
        if path not in taken or path == AGENT_FOLDER:  # the API server rejects duplicates
            volumes.append({**source, "name": volume})
            mounts.append({"name": volume, "mountPath": path})
    volumes.append(keys_volume(secret))
    container.update(
        command=["python3", f"{AGENT_FOLDER}/agent.pyz", "worker", "--"],
        args=list(group.command),
        env=_environment(
            job,
            group,
            name,
            grace,
            size_limit(volumes, mounts),
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
        "command": ["cp", AGENT_IN_IMAGE, f"{KEYS_FOLDER}/{KEYS_FILE}", f"{AGENT_FOLDER}/"],
        "resources": small_resources("16Mi", cpu="500m", memory="64Mi"),
        "securityContext": {**OURS, "runAsNonRoot": not runs_as_root(spec)},
        "volumeMounts": [
            {"name": "ddpjob-agent", "mountPath": AGENT_FOLDER},
            KEYS_MOUNT,
        ],
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


def _environment(
    job: DDPJob,
    group: Group,
    name: str,
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
            ENV_KEYS: f"{AGENT_FOLDER}/{KEYS_FILE}",
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
