"""Exit codes, errors and standard output of all commands.

May not: import a package that is not in the standard library, so that `ddpjob` starts quickly.
"""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from enum import IntEnum
from typing import IO

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


def print_error(message: str) -> None:
    """Print a message to stderr, in red on a terminal."""
    colour = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    try:
        print(f"\033[31m{message}\033[0m" if colour else message, file=sys.stderr, flush=True)
    except (OSError, ValueError):
        discard(sys.stderr)  # the exit code remains


class OutputError(OSError):
    """A failure to write standard output."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(str(cause))
        self.is_closed_pipe = isinstance(cause, BrokenPipeError)


class _Stdout(io.FileIO):
    """Standard output whose failures differ from those of every other file."""

    def write(self, data: bytes, /) -> int:  # type: ignore[override] # any buffer
        try:
            return super().write(data)
        except OSError as error:
            raise OutputError(error) from error


def identify_output_errors() -> None:
    """Let each failure to write standard output raise OutputError."""
    old = sys.stdout
    if old is None or old is not sys.__stdout__ or not isinstance(old, io.TextIOWrapper):
        return
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(_Stdout(old.fileno(), "w", closefd=False)),
        encoding=old.encoding,
        errors=old.errors,
        line_buffering=old.line_buffering,
        write_through=old.write_through,
    )


def flush_output() -> None:
    """Write what standard output still holds, if it is open."""
    if sys.stdout is not None:
        sys.stdout.flush()


def discard(stream: IO[str]) -> None:
    """Discard what a stream holds and gets from now on, so that the interpreter ends quietly."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def installed_version() -> str:
    """Return the version of ddpjob."""
    import importlib.metadata  # noqa: PLC0415 - rarely needed, and slow to import

    return importlib.metadata.version("ddpjob")
