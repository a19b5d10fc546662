"""The file with the keys of a worker, or with that of a job's rendezvous service.

A worker's file is removed once it is read, before a process of the user starts.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from typing import Callable, TypeVar

from ddpjob_agent.worker.settings import UsageError
from ddpjob_protocol.environment import ENV_KEYS
from ddpjob_protocol.keys.credentials import JobKey, WorkerKeys

PR_SET_DUMPABLE = 4
MAX_LETTERS = 4096

T = TypeVar("T")


def take_worker_keys(path: str) -> WorkerKeys:
    """Return the keys in a worker's file, and remove it. Raise UsageError."""
    keys = _read(path, WorkerKeys.parse)
    with contextlib.suppress(FileNotFoundError):
        try:
            os.unlink(path)
        except OSError as error:
            raise UsageError(
                f"{path} cannot be removed: {error.strerror}. The processes of the user must not"
                " read it; let the agent's user write to its folder"
            ) from error
    return keys


def read_job_key(path: str) -> JobKey:
    """Return the key in the file of a rendezvous service. Raise UsageError."""
    return _read(path, JobKey.parse)


def close_memory() -> None:
    """Let no other process of this user read this process, its environment or its descriptors.

    A program that this process executes can be read again.
    """
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def _read(path: str, parse: Callable[[str], T]) -> T:
    try:
        with open(path, encoding="utf-8") as file:
            return parse(file.read(MAX_LETTERS))
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{ENV_KEYS}: {path} has no keys: {error}; the operator writes this file"
        ) from None
