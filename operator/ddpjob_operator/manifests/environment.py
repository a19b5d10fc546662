"""The environment that a worker gets from its job, wherever the worker runs.

May not: know pods, processes or addresses; who creates a worker adds those.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from ddpjob_agent import contract
from ddpjob_operator.api.spec import DDPJob, Group

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
            contract.ENV_JOB: f"{metadata.namespace}/{metadata.name}",
            contract.ENV_JOB_UID: metadata.uid,
            contract.ENV_PROCESSES: str(group.processes),
            contract.ENV_LAUNCHER: spec.starter,
            contract.ENV_SAGEMAKER: 1 if spec.sagemaker else None,
            contract.ENV_ORPHAN_SECONDS: f"{spec.elastic.orphan_seconds:g}",
            contract.ENV_WARM_START: None if spec.elastic.warm_start else 0,
            contract.ENV_WARM_IMPORTS: " ".join(spec.elastic.warm_imports) or None,
            contract.ENV_SNAPSHOT_URI: spec.snapshot.uri,
            contract.ENV_SNAPSHOT_EVERY: spec.snapshot.every_steps,
            contract.ENV_SNAPSHOT_KEEP: spec.snapshot.keep,
            contract.ENV_SNAPSHOT_FILES: _list(spec.snapshot.files),
        }
    )


def _list(texts: Sequence[str]) -> str | None:
    return json.dumps(texts, ensure_ascii=False) if texts else None


def _given(variables: dict[str, object]) -> dict[str, str]:
    return {name: str(value) for name, value in variables.items() if value is not None}
