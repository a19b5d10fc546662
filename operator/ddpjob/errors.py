"""Errors of the Python API; each message names the cause and the remedy."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ddpjob_operator.cli.common import CommandError, ExitCode, JobEndedError


class DDPJobError(Exception):
    """A failure of ddpjob."""


class InvalidJobError(DDPJobError, ValueError):
    """A job that breaks a rule; the message has one line for each problem."""


class JobFailedError(DDPJobError):
    """A job that failed, or was deleted before its end; `reason` is one CamelCase word."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class LocalRunError(DDPJobError):
    """A local run that could not start, or broke; `exit_code` is that of `ddpjob run`."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class ClusterError(DDPJobError):
    """A request that the cluster rejected, or a cluster that cannot be reached."""


class WaitTimeoutError(DDPJobError, TimeoutError):
    """A wait that ended before the job; the job continues."""


@contextlib.contextmanager
def reading_file() -> Iterator[None]:
    """Raise InvalidJobError for a job file that a command would reject."""
    try:
        yield
    except CommandError as error:
        raise InvalidJobError(str(error)) from error


@contextlib.contextmanager
def asking_cluster() -> Iterator[None]:
    """Raise an error of this module for a failure of a command on a cluster."""
    try:
        yield
    except JobEndedError as error:
        raise JobFailedError(str(error), error.reason) from error
    except CommandError as error:
        kind = WaitTimeoutError if error.code is ExitCode.TIMEOUT else ClusterError
        raise kind(str(error)) from error
