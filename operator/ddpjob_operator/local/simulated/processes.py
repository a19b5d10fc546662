"""The processes of a local job, found by their environment.

May not: know pods or nodes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from collections.abc import Iterable
from typing import Protocol

import psutil

from ddpjob_agent.forkserver.agents import wait_until_gone
from ddpjob_protocol.environment import ENV_JOB_UID, ENV_WORKER

# Variables of torch and of Open MPI.
RANKS = (("RANK", "LOCAL_RANK"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"))


# Failures to start a process that another attempt may not have.
PASSING = frozenset(
    [errno.EAGAIN, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC]
)


class CannotStartError(Exception):
    """An agent or the service cannot be started on this machine, and further attempts would not help."""


class Child(Protocol):
    """A child process, as the event loop or a fork server gives it."""

    @property
    def pid(self) -> int:
        """Process id."""

    @property
    def returncode(self) -> int | None:
        """Exit code, once the process has been reaped."""


def explain_lasting(error: OSError, program: str) -> str:
    """Return why this program cannot be started, or nothing if another attempt may help."""
    if error.errno in PASSING:
        return ""
    what = error.filename if error.filename is not None else program
    return (
        f"{program} cannot be started here: {error.strerror}: '{what}'. Correct the path or its"
        " permissions, and repeat the command"
    )


def marked(uid: str) -> list[psutil.Process]:
    """Return the living processes with the job's UID in their environment."""
    return [p for p in psutil.process_iter() if _environ(p).get(ENV_JOB_UID) == uid]


def sweep(uid: str) -> None:
    """Kill the remaining processes of a job."""
    while processes := marked(uid):
        kill_all(processes)


def send_signal(process: Child, number: int) -> None:
    """Send a signal to a child, unless it has ended.

    `Popen.send_signal` would reap the child, which is the work of the event loop.
    """
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)


def kill_all(processes: Iterable[psutil.Process]) -> None:
    """Kill processes; a SIGSTOP to all prevents reactions to a process's death."""
    processes = list(processes)
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)


async def wait_until_ended(processes: Iterable[psutil.Process]) -> None:
    """Wait until processes have ended, which releases their devices; zombies count as ended."""
    for process in processes:
        if process.is_running():
            await wait_until_gone(process.pid)


def rank_of(process: psutil.Process) -> int | None:
    """Return the rank of a training process, or None for another process."""
    parent, environment = process.parent(), _environ(process)
    for rank, local_rank in RANKS:
        if rank in environment and local_rank in environment:
            is_child = parent is not None and rank in _environ(parent)
            return None if is_child else int(environment[rank])
    return None


def pod_processes(uid: str, worker: str, agent: int | None) -> list[psutil.Process]:
    """Return the processes with the pod's name in their environment, the agent and its descendants.

    `agent` is the process id of a running agent.
    """
    processes = {p.pid: p for p in marked(uid) if _environ(p).get(ENV_WORKER) == worker}
    if agent is not None:
        with contextlib.suppress(psutil.NoSuchProcess):
            root = psutil.Process(agent)
            processes |= {p.pid: p for p in (root, *root.children(recursive=True))}
    return list(processes.values())


def _environ(process: psutil.Process) -> dict[str, str]:
    try:
        if process.status() == psutil.STATUS_ZOMBIE or process.pid == os.getpid():
            return {}
        return process.environ()
    except (psutil.Error, OSError):
        return {}
