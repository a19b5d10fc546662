"""Environment variables of workers and of training processes, and the values that they have."""

from __future__ import annotations

import enum

# Set in a worker pod by its creator, read by the agent.
ENV_WORKER = "DDPJOB_WORKER"  # name of the worker, unique within the job
ENV_PROCESSES = "DDPJOB_PROCESSES"  # number of processes of this worker
ENV_SERVICE = "DDPJOB_SERVICE"  # host:port of the rendezvous service; IPv6 as [host]:port
ENV_KEYS = "DDPJOB_KEYS"  # file with the keys of the pod
ENV_MEMORY_BYTES = "DDPJOB_MEMORY_BYTES"  # limit of the service's memory
ENV_ADDRESS = "DDPJOB_ADDRESS"  # address at which other workers reach this worker
ENV_ORPHAN_SECONDS = "DDPJOB_ORPHAN_SECONDS"  # without the service for this time: stop
ENV_STUCK_SECONDS = "DDPJOB_STUCK_SECONDS"  # a live process without movement in a broken step
ENV_GRACE_SECONDS = "DDPJOB_GRACE_SECONDS"  # seconds from SIGTERM to SIGKILL
ENV_LAUNCHER = "DDPJOB_LAUNCHER"  # a Launcher
ENV_SAGEMAKER = "DDPJOB_SAGEMAKER"  # "1": set SageMaker's variables for the command
ENV_WARM_START = "DDPJOB_WARM_START"  # "0": torchrun never starts from a fork server
ENV_WARM_PARENT = "DDPJOB_WARM_PARENT"  # descriptor and process id of a fork server
ENV_WARM_IMPORTS = "DDPJOB_WARM_IMPORTS"  # modules that fork servers import, beside torch
ENV_TERMINATION_LOG = "DDPJOB_TERMINATION_LOG"  # file for the termination message
ENV_OUTPUT = "DDPJOB_OUTPUT"  # a local run: the Unix socket of its screen

# Set by the worker's creator, or by the agent, for the user's processes.
ENV_JOB = "DDPJOB_JOB"  # namespace/name
ENV_JOB_UID = "DDPJOB_JOB_UID"  # marks every process of the job
ENV_MEMBERSHIP = "DDPJOB_MEMBERSHIP"  # identity of the membership, "term.boot.n"
ENV_REPORT_SOCKET = "DDPJOB_REPORT_SOCKET"  # Unix datagram socket for reports
ENV_STEPS = "DDPJOB_STEPS"  # file: steps done by each local rank, STEPS_BYTES little-endian each
ENV_OUTPUT_FOLDER = "DDPJOB_OUTPUT_FOLDER"  # FIFOs of the ranks; torchrun only
ENV_GROUP_SOCKET = "DDPJOB_GROUP_SOCKET"  # Unix stream socket for an Assignment
ENV_FIRST_RANK = "DDPJOB_FIRST_RANK"  # of this worker; for a script that starts processes
ENV_WORLD_SIZE = "DDPJOB_WORLD_SIZE"  # of all workers; for a script that starts processes
ENV_LIVE = "DDPJOB_LIVE"  # "1": live mode: these processes survive a change
ENV_LEFT_STATE = "DDPJOB_LEFT_STATE"  # file of a stuck process, without ".LOCAL_RANK"
ENV_MPI_KEY = "DDPJOB_MPI_KEY"  # file with the key of mpirun's lines
ENV_STORE = "DDPJOB_STORE"  # host:port of the current membership's c10d store
ENV_SNAPSHOT_DIR = "DDPJOB_SNAPSHOT_DIR"
ENV_SNAPSHOT_URI = "DDPJOB_SNAPSHOT_URI"  # object store for snapshots, instead of a directory
ENV_SNAPSHOT_EVERY = "DDPJOB_SNAPSHOT_EVERY"  # steps between snapshots
ENV_SNAPSHOT_BYTES = "DDPJOB_SNAPSHOT_BYTES"  # limit of the volume of ENV_SNAPSHOT_DIR
ENV_SNAPSHOT_KEEP = "DDPJOB_SNAPSHOT_KEEP"  # number of snapshots to keep
ENV_SNAPSHOT_FILES = "DDPJOB_SNAPSHOT_FILES"  # JSON list: files that an unchanged script saves to

# Scheme, bucket and prefix of ENV_SNAPSHOT_URI; valid as a regular expression of CEL, too.
SNAPSHOT_URI = "(s3|gs|az)://([a-zA-Z0-9][-._a-zA-Z0-9]*)((?:/[^/?#% ]+)*)/?"

GRACE_SECONDS = 45  # default, if the user's pod does not set it
STUCK_SECONDS = 10  # default of elastic.stuckSeconds

STEPS_BYTES = 8
# `python -m MODULE` runs torchrun.
TORCHRUN_MODULES = ("torch.distributed.run", "torch.distributed.launch")

REPORT_SOCKET, GROUP_SOCKET = "report.sock", "group.sock"  # in the agent's folder


class Launcher(str, enum.Enum):
    """The program that starts the processes of a worker."""

    TORCHRUN = "torchrun"  # the command runs torchrun, which reads PET_* variables
    PYTHON = "python"  # the command is the process, or starts the processes
    MPI = "mpi"  # the first worker's command runs mpirun

    def __str__(self) -> str:
        return self.value
