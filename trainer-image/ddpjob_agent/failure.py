"""What went wrong in a command that ended badly, in the words of the process that failed first.

Sources, best first: the error files of scripts under torch's @record; tracebacks on stderr, with
torch's "[rank1]:" prefix or without; torchrun's own "Root Cause" paragraph; the exit code.
Reads files; starts nothing.
"""

from __future__ import annotations

import glob
import json
import os
import re
import signal
from typing import NamedTuple

from .contract import Failure

MAX_TRACEBACK_CHARS = 4000
# What a process says when it dies of the death of another one.
ECHO = re.compile(
    r"Connection (closed|reset) by peer|Broken pipe|Connection refused|recvBytes|sendBytes"
    r"|ncclRemoteError|NCCL communicator was aborted|remote process exited|DistNetworkError"
    r"|DistStoreError|Socket Timeout"
)
_TRACEBACK = re.compile(r"^(?:\[rank(\d+)\]:\s?)?Traceback \(most recent call last\):")
_ROOT_CAUSE = re.compile(
    r"Root Cause \(first observed failure\):.*?rank\s+: (\d+) .*?exitcode\s+: (-?\d+)", re.DOTALL
)


class _Story(NamedTuple):
    rank: int | None
    traceback: str

    @property
    def summary(self) -> str:
        return self.traceback.rstrip().rpartition("\n")[2].strip()

    @property
    def is_echo(self) -> bool:
        return bool(ECHO.search(self.summary))


def read_failure(
    exit_code: int, ended_at: float, stderr: bytes, traceback_at: float | None, log_dir: str
) -> Failure:
    """The failure of a command; times in seconds since the epoch."""
    text = stderr.decode(errors="replace")
    recorded = _recorded(log_dir)
    stories = [recorded[0]] if recorded else _tracebacks(text)
    at = recorded[1] if recorded else min(ended_at, traceback_at or ended_at)
    root = _ROOT_CAUSE.search(text)
    rank, code = (int(root[1]), int(root[2])) if root else (None, exit_code)
    story = next((story for story in stories if not story.is_echo), None)
    if story is None and code < 0:
        what = f"was ended by {_signal_name(-code)}"
        return Failure(ended_at, f"{_who(rank)} {what}", rank=rank, exit_code=code)
    story = story or next(iter(stories), None)
    if story is None:
        summary = f"{_who(rank)} ended with exit code {code}"
        return Failure(at, summary, rank=rank, exit_code=code)
    who = story.rank if story.rank is not None else rank
    return Failure(
        at=at,
        summary=f"{_who(who)}: {story.summary}"[:500],
        traceback=story.traceback[-MAX_TRACEBACK_CHARS:],
        rank=who,
        exit_code=code,
        consequential=story.is_echo,
    )


def _who(rank: int | None) -> str:
    return "the command" if rank is None else f"rank {rank}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _recorded(log_dir: str) -> tuple[_Story, float] | None:
    """The oldest error file that torch's @record wrote, and its time."""
    paths = glob.glob(os.path.join(glob.escape(log_dir), "**", "error.json"), recursive=True)
    for path in sorted(paths, key=os.path.getmtime):
        try:
            with open(path, encoding="utf-8") as file:
                message = json.load(file)["message"]
            return _Story(None, message["extraInfo"]["py_callstack"]), os.path.getmtime(path)
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return None


def _tracebacks(text: str) -> list[_Story]:
    """Tracebacks in order of their first lines, torchrun's own left out."""
    lines = text.splitlines()
    found = []
    for start, line in enumerate(lines):
        match = _TRACEBACK.match(line)
        if match:
            prefix = line[: match.start(0)] if match[1] is None else f"[rank{match[1]}]:"
            story = _Story(int(match[1]) if match[1] else None, _block(lines[start:], prefix))
            if "ChildFailedError" not in story.traceback:
                found.append(story)
    return found


def _block(lines: list[str], prefix: str) -> str:
    """One traceback: up to and with its first line that is not indented."""
    block = []
    for line in lines:
        if not line.startswith(prefix):
            continue
        bare = line[len(prefix) :]
        bare = bare[1:] if prefix and bare.startswith(" ") else bare
        block.append(bare)
        if len(block) > 1 and bare and not bare.startswith(" "):
            break
    return "\n".join(block)
