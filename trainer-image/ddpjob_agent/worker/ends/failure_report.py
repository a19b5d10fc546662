"""The failure of a command, in the words of the process that failed first.

Sources, best first: the error files of scripts under torch's @record; tracebacks on stderr, with
torch's "[rank1]:" prefix or without; the "Root Cause" paragraph of torchrun; the last line on
stderr that torchrun did not print; the exit code.
A script that is missing is explained, too. This module reads files. It starts no process.
"""

from __future__ import annotations

import dataclasses
import glob
import json
import os
import re
import signal
import stat
from typing import TYPE_CHECKING, Callable, NamedTuple

from ddpjob_protocol.failures.peer_errors import SECONDARY
from ddpjob_protocol.messages.agent import Failure
from ddpjob_protocol.text import last_lines, shorten

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_TRACEBACK_CHARS = 4000
MAX_SUMMARY_CHARS = 500
_PYTHONS_USAGE = 2  # exit code of python if it cannot read the script
MAX_MESSAGE_LINES = 20  # of an exception; nothing marks the end of its message
_RANK = re.compile(r"\[rank([0-9]{1,9})\]:\s?")
_TRACEBACK = re.compile(r"Traceback \(most recent call last\):")
_SYNTAX_ERRORS = ("SyntaxError: ", "IndentationError: ", "TabError: ")
_CHAIN = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)
_LOG = re.compile(r"\[?[DIWEF]\d{4} \d\d:\d\d:\d\d\.\d{1,9} ")
_ROOT_CAUSE = "Root Cause (first observed failure):"
_ROOT_RANK = re.compile(r"rank\s{1,99}: ([0-9]{1,9}) ")
_ROOT_CODE = re.compile(r"exitcode\s{1,99}: (-?[0-9]{1,9})")
# mpirun of Open MPI 5 and 4 prints a signal, an exit code, or the process that called abort.
_MPIRUN = re.compile(
    r"process rank (?P<killed>[0-9]{1,9}) with PID [0-9]{1,9} on node \S{1,255}\s{1,99}exited"
    r"\s{1,99}on\s{1,99}signal (?P<signal>[0-9]{1,9})"
    r"|Process name: \[.{0,255},(?P<ended>[0-9]{1,9})\]\s{1,99}Exit code:\s{1,99}(?P<code>[0-9]{1,9})"
    r"|process rank (?P<aborted>[0-9]{1,9}) with PID [0-9]{1,9} on node \S{1,255}\s{1,99}calling"
    r'\s{1,99}"abort"'
)
_MPIRUNS_RULE = re.compile(r"^-{40,255}\n", re.MULTILINE)  # above and below each message of mpirun
_NO_SCRIPT = re.compile(r"can't open file '([^']{1,4095})': \[Errno 2\] No such file or directory")
_MPIS_ECHO = re.compile(r"\[\S{1,255}:[0-9]{1,9}\] ")
_MAX_ERROR_FILE_BYTES = 1 << 20


class _Traceback(NamedTuple):
    rank: int | None
    traceback: str
    exceptions: list[str]  # first line of each, from the cause to the last

    @property
    def summary(self) -> str:
        """The last exception that is not a consequence of the end of another process."""
        own = [line for line in self.exceptions if not SECONDARY.search(line)]
        return (own or self.exceptions)[-1]

    @property
    def is_secondary(self) -> bool:
        return bool(SECONDARY.search(self.exceptions[0]))


def read_failure(
    exit_code: int,
    ended_at: float,
    stderr: bytes,
    traceback_at: float | None,
    log_dir: str,
    worker_of: Callable[[int | None], str],
) -> Failure:
    """Return the failure of a command; times in seconds since 1970.

    `worker_of` returns the worker with a rank, or the worker of the command for None.
    """

    def subject(rank: int | None) -> str:
        worker = worker_of(rank)
        return f"the command of {worker}" if rank is None else f"rank {rank} ({worker})"

    text = stderr.decode(errors="replace").replace("\0", "")
    recorded = _read_error_file(log_dir)
    traces = [recorded[0]] if recorded else _tracebacks(text)
    at = recorded[1] if recorded else min(ended_at, traceback_at or ended_at)
    rank, code = _root_rank(text, exit_code)
    trace = next((trace for trace in traces if not trace.is_secondary), None)
    if trace is None and code < 0:
        what = f"was killed by {_signal_name(-code)}"
        summary = f"{subject(rank)} {what}"
        return Failure(ended_at, summary, rank=rank, exit_code=code, worker=worker_of(rank))
    trace = trace or next(iter(traces), None)
    if trace is None:
        words = _last_lines(text)
        hint = f"; last on stderr: {words}" if words else ""
        summary = shorten(f"{subject(rank)} ended with exit code {code}{hint}", MAX_SUMMARY_CHARS)
        return Failure(at, summary, rank=rank, exit_code=code, worker=worker_of(rank))
    failed_rank = trace.rank if trace.rank is not None else rank
    return Failure(
        at=at,
        summary=shorten(f"{subject(failed_rank)}: {trace.summary}", MAX_SUMMARY_CHARS),
        traceback=last_lines(trace.traceback, MAX_TRACEBACK_CHARS),
        rank=failed_rank,
        exit_code=code,
        secondary=trace.is_secondary,
        worker=worker_of(failed_rank),
    )


def explain_missing_script(failure: Failure, folder: str) -> Failure:
    """Return the failure; if python finds no script, make it permanent and add the remedy.

    `folder` is the working directory.
    """
    match = _NO_SCRIPT.search(failure.summary) if failure.exit_code == _PYTHONS_USAGE else None
    if match is None or os.path.exists(os.path.join(folder, match[1])):
        return failure
    summary = (
        f"{failure.summary} (working directory {folder}); correct the script in spec.command, add"
        " it to the image, or mount the volume that has it"
    )
    return dataclasses.replace(failure, summary=summary, permanent=True)


def _root_rank(text: str, exit_code: int) -> tuple[int | None, int]:
    """Return the rank that failed first, if torchrun or mpirun printed it, and the exit code."""
    _, _, cause = text.partition(_ROOT_CAUSE)
    root = _ROOT_RANK.search(cause)
    code = _ROOT_CODE.search(cause, root.end()) if root else None
    if root and code:
        return int(root[1]), int(code[1])
    match = _MPIRUN.search(text)
    if not match:
        return None, exit_code
    if match["killed"]:
        return int(match["killed"]), -int(match["signal"])
    return int(match["ended"] or match["aborted"]), int(match["code"] or exit_code)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _read_error_file(log_dir: str) -> tuple[_Traceback, float] | None:
    """Return the oldest error file of torch's @record, and the time of the file."""
    paths = glob.glob(os.path.join(glob.escape(log_dir), "**", "error.json"), recursive=True)
    found = []
    for path in paths:
        try:
            written_at, content = _read_file(path)
            callstack = json.loads(content)["message"]["extraInfo"]["py_callstack"]
            lines = callstack.encode(errors="replace").decode().replace("\0", "").splitlines()
            found.append((_parse_traceback(lines, None)[0], written_at))
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            continue
    return min(found, key=lambda each: each[1], default=None)


def _read_file(path: str) -> tuple[float, bytes]:
    """Return the time and the content of a regular file; raise OSError or ValueError."""
    with open(
        os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb"
    ) as file:  # waits for no other process
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_ERROR_FILE_BYTES:
            raise ValueError(f"{path} is not an error file")
        return status.st_mtime, file.read(status.st_size)


def _tracebacks(text: str) -> list[_Traceback]:
    """Return the tracebacks in order of their first lines, without those of torchrun."""
    streams: dict[int | None, list[tuple[int, str]]] = {}  # by rank: number and text of the lines
    for number, line in enumerate(text.splitlines()):
        match = _RANK.match(line)
        rank, bare = (int(match[1]), line[match.end() :]) if match else (None, line)
        streams.setdefault(rank, []).append((number, bare))
    found = []
    for rank, numbered in streams.items():
        lines = [line for _, line in numbered]
        at = 0
        while at < len(lines):
            if not _TRACEBACK.match(lines[at]):
                at += 1
                continue
            trace, length = _parse_traceback(lines[at:], rank)
            if "ChildFailedError" not in trace.summary:
                found.append((numbered[at][0], trace))
            at += length
    if not found:
        found = [(0, error) for error in _syntax_errors(text.split("\n"))][:1]
    return [trace for _, trace in sorted(found, key=lambda pair: pair[0])]


def _parse_traceback(lines: list[str], rank: int | None) -> tuple[_Traceback, int]:
    """Return the traceback that starts at the first line, with its chain, and its line count."""
    exceptions, end = [], 0
    while True:
        end += 1
        # Processes that fail together mix their lines, so a first line does not end a traceback.
        while end < len(lines) and (lines[end].startswith(" ") or _TRACEBACK.match(lines[end])):
            end += 1
        exceptions.append(lines[min(end, len(lines) - 1)].strip())
        limit = min(end + MAX_MESSAGE_LINES, len(lines))
        end += 1
        while end < limit and not _ends_message(lines[end]):
            end += 1
        following = end + 1 if end < len(lines) and lines[end] in _CHAIN else len(lines)
        while following < len(lines) and not lines[following]:
            following += 1
        if following == len(lines) or not _TRACEBACK.match(lines[following]):
            return _Traceback(rank, "\n".join(lines[:end]).rstrip(), exceptions), end
        end = following


def _ends_message(line: str) -> bool:
    return line in _CHAIN or bool(_TRACEBACK.match(line) or _LOG.match(line))


def _syntax_errors(lines: list[str]) -> Iterator[_Traceback]:
    """Yield the syntax errors: Python prints them without the first line of a traceback."""
    start: int | None = None
    for number, line in enumerate(lines):
        _, is_place, place = line.rpartition('", line ')
        if line.startswith('  File "') and is_place and place.isdigit():
            start = number
        elif not line.startswith("    "):
            if start is not None and line.startswith(_SYNTAX_ERRORS):
                yield _Traceback(None, "\n".join(lines[start : number + 1]), [line])
            start = None


def _last_lines(text: str) -> str:
    """Return the last line before the report of torchrun or mpirun, without log lines."""
    own, *others = _MPIRUNS_RULE.split(text)
    words = ""
    for line in own.splitlines():
        if _LOG.match(line):
            if "failed (exitcode" in line:
                return words
        elif line.strip() and not _MPIS_ECHO.match(line):
            words = line.strip()
    return words or next((part.splitlines()[0] for part in others if part.strip()), "")
