"""The failure of a live process that ended before the job's last step, whatever its exit code.

The other processes wait for it in their collectives. May not: end a process.
"""

from __future__ import annotations

import time

from ddpjob_agent.worker.launch import recorded_steps
from ddpjob_protocol.messages.agent import Failure

_REMEDY = (
    "A process that ends before the last step has failed, also with exit code 0. To end training"
    " early on every rank, call loop.stop() on one of them"
)


def early_end(rank: int, local_rank: int, worker: str, logs: str) -> Failure:
    """Return the failure; `logs` is the folder with the steps file of the worker's processes."""
    step = next(iter(recorded_steps(logs)[local_rank:]), 0)
    where = f"after step {step}" if step else "before its first step"
    summary = f"rank {rank} ({worker}) ended {where}, before the last step. {_REMEDY}"
    return Failure(time.time(), summary, rank=rank, exit_code=0)
