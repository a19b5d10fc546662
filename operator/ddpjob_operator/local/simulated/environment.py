"""The environment of the processes of a local job.

May not: start processes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Mapping
from pathlib import Path

from ddpjob_operator.api.spec import DDPJob
from ddpjob_operator.api.spec.worker_groups import Group
from ddpjob_operator.manifests.environment import (
    agent_environment,
    device_environment,
    network_environment,
    sagemaker_environment,
)
from ddpjob_protocol.environment import Launcher

# Simulated nodes share a host name, so Open MPI would use shared memory between them. They also
# share cores, so a waiting process must yield.
MPI_ON_ONE_MACHINE = {
    "OMPI_MCA_pml": "ob1",
    "OMPI_MCA_btl": "tcp,self",
    "OMPI_MCA_coll": "^han,sm,xhc",
    "OMPI_MCA_btl_tcp_if_include": "127.0.0.0/8",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
}
# torchrun sets this for several processes on a machine, but sees one simulated node only.
SHARED_CORES = {"OMP_NUM_THREADS": "1"}
ENV_FORKSERVER = "DDPJOB_FORKSERVER"  # socket of a running fork server, see ADR 0035
# Variables that other launchers set for their processes.
FOREIGN = frozenset(
    {
        "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
        "NNODES", "NODE_RANK", "NPROC_PER_NODE",
    }
)  # fmt: skip


def worker_environment(
    job: DDPJob, group: Group, inherited: Mapping[str, str], workdir: Path
) -> dict[str, str]:
    """Return the job's variables of a worker; the user's variables override all but the agent's."""
    user = {entry.name: entry.value for entry in group.env}
    several = sum(each.replicas * each.processes for each in job.spec.groups()) > 1
    return {
        **(MPI_ON_ONE_MACHINE if job.spec.resolved_launcher == Launcher.MPI else {}),
        **(SHARED_CORES if several else {}),
        **inherited,
        **sagemaker_environment(job, group, str(workdir / "opt" / "ml")),
        **network_environment(job),
        **device_environment(job),
        **user,
        **agent_environment(job, group),
    }


def inherited_environment(
    environment: Mapping[str, str], replaced: Collection[str] = ()
) -> dict[str, str]:
    """Return an environment without the variables of other jobs and launchers.

    `replaced` are further variables to omit: the run sets them for each worker.
    """
    foreign = ("DDPJOB_", "PET_", "TORCHELASTIC_")
    kept = {k: v for k, v in environment.items() if not k.startswith(foreign) and k not in FOREIGN}
    kept = {k: v for k, v in kept.items() if k not in replaced}
    return {**kept, "PATH": search_path()}


def search_path() -> str:
    """Return PATH with the folder of this Python, which holds torchrun, in front."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
