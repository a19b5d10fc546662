"""The environment that a worker gets from its job, wherever the worker runs.

May not: know pods, processes or addresses; who creates a worker adds those.
"""

from __future__ import annotations

from ddpjob_agent import contract
from ddpjob_operator.api import DDPJob, Group


def worker_environment(job: DDPJob, group: Group) -> dict[str, str]:
    """Variables of the agent and of the user's processes; what the user set wins."""
    spec, metadata = job.spec, job.metadata
    ours = {
        contract.ENV_JOB: f"{metadata.namespace}/{metadata.name}",
        contract.ENV_JOB_UID: metadata.uid,
        contract.ENV_PROCESSES: str(group.processes),
        contract.ENV_ORPHAN_SECONDS: f"{spec.elastic.orphan_seconds:g}",
        contract.ENV_SNAPSHOT_EVERY: spec.snapshot.every_steps,
        contract.ENV_SNAPSHOT_KEEP: spec.snapshot.keep,
    }
    network = {
        "NCCL_SOCKET_IFNAME": spec.network.interface,
        "GLOO_SOCKET_IFNAME": spec.network.interface,
        "NCCL_DEBUG": spec.network.nccl_debug,
    }
    given = {**network, **group.env, **ours}
    return {name: str(value) for name, value in given.items() if value is not None}
