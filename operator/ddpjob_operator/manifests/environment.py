"""The environment variables that a job sets for its workers, on a cluster or a single machine.

May not: know pods, processes or addresses; the creator of a worker adds their variables.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from ddpjob_operator.api.spec import DDPJob
from ddpjob_operator.api.spec.worker_groups import Group
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
    ENV_STUCK_SECONDS,
    ENV_WARM_IMPORTS,
    ENV_WARM_START,
)

# Value of PJRT_DEVICE for each resource that a worker requests.
PJRT_DEVICES = {
    "aws.amazon.com/neuron": "NEURON",
    "aws.amazon.com/neurondevice": "NEURON",
    "aws.amazon.com/neuroncore": "NEURON",
    "google.com/tpu": "TPU",
}


def network_environment(job: DDPJob) -> dict[str, str]:
    """Return the network variables of NCCL and Gloo; the user's variables override them."""
    network = job.spec.network
    return _given(
        {
            "NCCL_SOCKET_IFNAME": network.interface,
            "GLOO_SOCKET_IFNAME": network.interface,
            "NCCL_DEBUG": network.nccl_debug,
        }
    )


def device_environment(job: DDPJob) -> dict[str, str]:
    """Return the device variables of torch_xla; the user's variables override them."""
    device = PJRT_DEVICES.get(job.spec.gpu_resource)
    return {"PJRT_DEVICE": device} if device else {}


def sagemaker_environment(job: DDPJob, group: Group, base: str) -> dict[str, str]:
    """Return the SM_* variables, which the user's override; `base` stands for /opt/ml."""
    sagemaker = job.spec.sagemaker
    return sagemaker.variables(job.spec.entry_point, group.gpus, base) if sagemaker else {}


def agent_environment(job: DDPJob, group: Group) -> dict[str, str]:
    """Return the variables that the agent and the trainer library read."""
    spec, metadata = job.spec, job.metadata
    return _given(
        {
            ENV_JOB: f"{metadata.namespace}/{metadata.name}",
            ENV_JOB_UID: metadata.uid,
            ENV_PROCESSES: str(group.processes),
            ENV_LAUNCHER: spec.resolved_launcher,
            ENV_SAGEMAKER: 1 if spec.sagemaker else None,
            ENV_ORPHAN_SECONDS: f"{spec.elastic.orphan_seconds:g}",
            ENV_STUCK_SECONDS: f"{spec.elastic.stuck_seconds:g}",
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
