"""Environment variables of workers and of training processes, and the values that they have."""

from __future__ import annotations

import enum

# Set in a worker pod by who creates it, read by the agent.
ENV_WORKER = "DDPJOB_WORKER"  # name of the worker, unique within the job
ENV_PROCESSES = "DDPJOB_PROCESSES"  # how many processes this worker contributes
ENV_SERVICE = "DDPJOB_SERVICE"  # host:port of the rendezvous service
ENV_TOKEN = "DDPJOB_TOKEN"  # secret of the job; never reaches the user's processes
ENV_ADDRESS = "DDPJOB_ADDRESS"  # the address under which other workers reach this one
ENV_ORPHAN_SECONDS = "DDPJOB_ORPHAN_SECONDS"  # without the service for so long: stop the processes
ENV_GRACE_SECONDS = "DDPJOB_GRACE_SECONDS"  # from SIGTERM to SIGKILL
ENV_LAUNCHER = "DDPJOB_LAUNCHER"  # what the command is started by: see Launcher
ENV_SAGEMAKER = "DDPJOB_SAGEMAKER"  # "1": the command is told of the hosts as SageMaker does it
ENV_WARM_START = "DDPJOB_WARM_START"  # "0": torchrun is never forked from a parent that knows torch
ENV_WARM_PARENT = "DDPJOB_WARM_PARENT"  # descriptor and process id of a parent that knows torch
ENV_WARM_IMPORTS = "DDPJOB_WARM_IMPORTS"  # modules that are imported in advance, beside torch
ENV_TERMINATION_LOG = "DDPJOB_TERMINATION_LOG"  # file that takes the last word

# Set by who creates the worker, or by the agent, for the user's processes.
ENV_JOB = "DDPJOB_JOB"  # namespace/name
ENV_JOB_UID = "DDPJOB_JOB_UID"  # marks every process of the job
ENV_MEMBERSHIP = "DDPJOB_MEMBERSHIP"  # identity of the membership, "term.boot.n"
ENV_REPORT_SOCKET = "DDPJOB_REPORT_SOCKET"  # Unix datagram socket that takes reports
ENV_STEPS = (
    "DDPJOB_STEPS"  # file: steps that each local rank has done, STEPS_BYTES little-endian each
)
ENV_GROUP_SOCKET = "DDPJOB_GROUP_SOCKET"  # Unix stream socket that tells of memberships, see Place
ENV_FIRST_RANK = "DDPJOB_FIRST_RANK"  # of this worker's processes, where a script starts its own
ENV_WORLD_SIZE = "DDPJOB_WORLD_SIZE"  # processes over all workers, there
ENV_LIVE = "DDPJOB_LIVE"  # "1": these processes stay when the membership changes
ENV_LEFT_STATE = "DDPJOB_LEFT_STATE"  # file, without ".LOCAL_RANK": left by who was stuck
ENV_STORE = "DDPJOB_STORE"  # host:port of the current membership's c10d store
ENV_SNAPSHOT_DIR = "DDPJOB_SNAPSHOT_DIR"
ENV_SNAPSHOT_URI = "DDPJOB_SNAPSHOT_URI"  # an object store; snapshots go there instead
ENV_SNAPSHOT_EVERY = "DDPJOB_SNAPSHOT_EVERY"  # steps between snapshots
ENV_SNAPSHOT_KEEP = "DDPJOB_SNAPSHOT_KEEP"  # how many snapshots stay
ENV_SNAPSHOT_FILES = "DDPJOB_SNAPSHOT_FILES"  # JSON list: what an unchanged script saves to

# Scheme, bucket and prefix of it; without anything that a regular expression of CEL cannot say.
SNAPSHOT_URI = "(s3|gs|az)://([a-zA-Z0-9][-._a-zA-Z0-9]*)((?:/[^/?#% ]+)*)/?"

GRACE_SECONDS = 45  # unless the user's pod says otherwise

STEPS_BYTES = 8
REPORT_SOCKET, GROUP_SOCKET = "report.sock", "group.sock"  # in the agent's folder


class Launcher(str, enum.Enum):
    """What starts the processes of a worker."""

    TORCHRUN = "torchrun"  # the command runs it, and it reads what it is not told from PET_*
    PYTHON = "python"  # the command is the process, or starts its own
    MPI = "mpi"  # the command runs mpirun, at the first worker only

    def __str__(self) -> str:
        return self.value
