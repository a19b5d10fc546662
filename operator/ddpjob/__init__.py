"""The Python API of ddpjob: define a job, run it on this machine, or run it on a cluster.

Importing this package loads neither torch nor a Kubernetes client; the methods load them.
"""

from ddpjob.errors import (
    ClusterError,
    DDPJobError,
    InvalidJobError,
    JobFailedError,
    LocalRunError,
    WaitTimeoutError,
)
from ddpjob.job import Job
from ddpjob.run_result import RunResult
from ddpjob_operator.api.status import DDPJobStatus as JobStatus

__all__ = [
    "ClusterError",
    "DDPJobError",
    "InvalidJobError",
    "Job",
    "JobFailedError",
    "JobStatus",
    "LocalRunError",
    "RunResult",
    "WaitTimeoutError",
]
