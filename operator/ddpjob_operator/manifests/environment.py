"""The environment that a worker gets from its job, wherever the worker runs.

May not: know pods, processes or addresses; who creates a worker adds those.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from ddpjob_operator.api.spec import DDPJob, Group
from ddpjob_protocol.environment import (
    ENV_JOB,
    ENV_JOB_UID,
    ENV_LAUNCHER,
    ENV_ORPHAN_SECONDS,
    ENV_PROCESSES,
    ENV_SAGEMAKER,
    ENV_SNAPSHOT_EVERY,
    ENV_SNAPSHOT_FILES,
    ENV_SNAPSHOT_KEEP,
    ENV_SNAPSHOT_URI,
    ENV_WARM_IMPORTS,
    ENV_WARM_START,
)

# By the resource that a worker asks for.
PJRT_DEVICES = {
    "aws.amazon.com/neuron": "NEURON",
    "aws.amazon.com/neurondevice": "NEURON",
    "aws.amazon.com/neuroncore": "NEURON",
    "google.com/tpu": "TPU",
}


def worker_environment(job: DDPJob, group: Group) -> dict[str, str]:
    """Variables of the agent and of the user's processes; what the user set wins."""
    user = {entry.name: entry.value for entry in group.env}
    return {
        **network_environment(job),
        **device_environment(job),
        **user,
        **agent_environment(job, group),
    }


def network_environment(job: DDPJob) -> dict[str, str]:
    """How the processes reach each other, unless the user says otherwise."""
    network = job.spec.network
    return _given(
        {
            "NCCL_SOCKET_IFNAME": network.interface,
            "GLOO_SOCKET_IFNAME": network.interface,
            "NCCL_DEBUG": network.nccl_debug,
        }
    )


def device_environment(job: DDPJob) -> dict[str, str]:
    """What torch_xla has to know of devices that it runs on, unless the user says otherwise."""
    device = PJRT_DEVICES.get(job.spec.gpu_resource)
    return {"PJRT_DEVICE": device} if device else {}


def sagemaker_environment(job: DDPJob, group: Group, base: str) -> dict[str, str]:
    """What a script for SageMaker finds, unless the user says otherwise; `base` is its /opt/ml."""
    sagemaker = job.spec.sagemaker
    return sagemaker.variables(job.spec.entry_point, group.gpus, base) if sagemaker else {}


def agent_environment(job: DDPJob, group: Group) -> dict[str, str]:
    """What the job says to the agent and to the trainer library."""
    spec, metadata = job.spec, job.metadata
    return _given(
        {
            ENV_JOB: f"{metadata.namespace}/{metadata.name}",
            ENV_JOB_UID: metadata.uid,
            ENV_PROCESSES: str(group.processes),
            ENV_LAUNCHER: spec.resolved_launcher,
            ENV_SAGEMAKER: 1 if spec.sagemaker else None,
            ENV_ORPHAN_SECONDS: f"{spec.elastic.orphan_seconds:g}",
            ENV_WARM_START: None if spec.elastic.warm_start else 0,
            ENV_WARM_IMPORTS: " ".join(spec.elastic.warm_imports) or None,
            ENV_SNAPSHOT_URI: spec.snapshot.uri,
            ENV_SNAPSHOT_EVERY: spec.snapshot.every_steps,
            ENV_SNAPSHOT_KEEP: spec.snapshot.keep,
            ENV_SNAPSHOT_FILES: _list(spec.snapshot.files),
        }
    )


def _list(texts: Sequence[str]) -> str | None:
    return json.dumps(texts, ensure_ascii=False) if texts else None


def _given(variables: dict[str, object]) -> dict[str, str]:
    return {name: str(value) for name, value in variables.items() if value is not None}
