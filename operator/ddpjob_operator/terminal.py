"""Standard output and standard error of `ddpjob`, whatever they are: a terminal, a full disk, closed.

A failure to write stdout is an OutputError, which differs from that of every other file. A failure
to write stderr is ignored: the exit code remains.
May not: import a package that is not in the standard library, so that `ddpjob` starts quickly.
"""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from typing import IO


class OutputError(OSError):
    """A failure to write standard output."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(str(cause))
        self.is_closed_pipe = isinstance(cause, BrokenPipeError)


class _Stdout(io.FileIO):
    def write(self, data: bytes, /) -> int:  # type: ignore[override] # any buffer
        try:
            return super().write(data)
        except OSError as error:
            raise OutputError(error) from error


class _Stderr(io.FileIO):
    def write(self, data: bytes, /) -> int:  # type: ignore[override] # any buffer
        try:
            return super().write(data)
        except OSError:
            return len(data)


def prepare() -> None:
    """Make the standard streams safe to write.

    A closed stream becomes /dev/null. No other file may get its number: what is printed would be
    written there.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
    if sys.stdout is sys.__stdout__:
        sys.stdout = _wrap(sys.stdout, _Stdout(1, "w", closefd=False))
    if sys.stderr is sys.__stderr__:
        sys.stderr = _wrap(sys.stderr, _Stderr(2, "w", closefd=False))


def _wrap(old: IO[str] | None, raw: io.FileIO) -> IO[str]:
    if not isinstance(old, io.TextIOWrapper):  # None: it was closed
        return io.TextIOWrapper(
            io.BufferedWriter(raw), errors="replace", line_buffering=raw.fileno() == 2
        )
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=old.encoding,
        errors=old.errors,
        line_buffering=old.line_buffering or old.write_through,  # PYTHONUNBUFFERED
    )


def print_error(message: str) -> None:
    """Print a message to stderr, in red on a terminal."""
    colour = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    sys.stderr.write(f"\033[31m{message}\033[0m\n" if colour else f"{message}\n")
    sys.stderr.flush()


def flush_output() -> None:
    """Write what standard output still holds."""
    sys.stdout.flush()


def discard_output() -> None:
    """Discard what standard output holds and gets from now on, so that the interpreter ends quietly."""
    with suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
