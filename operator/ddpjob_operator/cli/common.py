"""Exit codes and errors of all commands.

May not: import a package that is not in the standard library, so that `ddpjob` starts quickly.
"""

from __future__ import annotations

import os
import sys
from enum import IntEnum


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
    TIMEOUT = 124
    INTERRUPTED = 130
    BROKEN_PIPE = 141


class CommandError(Exception):
    """A failure that ends the command with a message and an exit code."""

    def __init__(self, code: ExitCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class JobEndedError(CommandError):
    """A job that failed, or was deleted before its end; `reason` is one CamelCase word."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(ExitCode.JOB_FAILED, message)
        self.reason = reason


def print_error(message: str) -> None:
    """Print a message to stderr, in red on a terminal."""
    colour = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    print(f"\033[31m{message}\033[0m" if colour else message, file=sys.stderr)


def installed_version() -> str:
    """Return the version of ddpjob."""
    import importlib.metadata  # noqa: PLC0415 - rarely needed, and slow to import

    return importlib.metadata.version("ddpjob")
