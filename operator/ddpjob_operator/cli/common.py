"""Exit codes and errors of all commands.

May not: import a package that is not in the standard library, so that `ddpjob` starts quickly.
"""

from __future__ import annotations

from enum import IntEnum

CLUSTER_PACKAGES = frozenset(["kopf", "kubernetes", "prometheus_client", "urllib3"])


class ExitCode(IntEnum):
    """An exit code of `ddpjob`; docs/exit-codes.md explains each."""

    OK = 0
    JOB_FAILED = 1
    CHECK_FAILED = 1  # of `doctor`
    INVALID = 2  # the job file, an option, the kubeconfig or the command in the file
    UNREACHABLE = 3
    PORT_IN_USE = 4
    ALREADY_RUNNING = 5
    REJECTED = 6
    OUTPUT_FAILED = 74  # EX_IOERR of sysexits.h
    TIMEOUT = 124
    INTERRUPTED = 130
    BROKEN_PIPE = 141


class CommandError(Exception):
    """A failure that ends the command with a message and an exit code."""

    def __init__(self, code: ExitCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class MissingExtraError(CommandError):
    """A package of the extra `cluster` is not installed."""

    def __init__(self, missing: ModuleNotFoundError) -> None:
        message = (
            f"this needs a cluster's client, and {missing.name} is not installed; install it with"
            " `pip install 'ddpjob[cluster]'`"
        )
        super().__init__(ExitCode.INVALID, message)


def is_of_extra(missing: ModuleNotFoundError) -> bool:
    """Return whether a missing module is of a package of the extra `cluster`."""
    return (missing.name or "").partition(".")[0] in CLUSTER_PACKAGES


class JobEndedError(CommandError):
    """A job that failed, or was deleted before its end; `reason` is one CamelCase word."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(ExitCode.JOB_FAILED, message)
        self.reason = reason


def installed_version() -> str:
    """Return the version of ddpjob."""
    import importlib.metadata  # noqa: PLC0415 - rarely needed, and slow to import

    return importlib.metadata.version("ddpjob")
