"""Names the failure of a process that the kernel killed because memory ran out.

The kernel kills one process, and the pod lives: then the kubelet reports nothing, and the process
has only a signal. The cgroup of the worker counts these kills. Both versions of cgroups are read,
inside and outside of a container. A file that cannot be read counts no kill.
May not: take another end for such a kill while the counter stays.
"""

from __future__ import annotations

import dataclasses
import os
import re
import signal

from ddpjob_protocol.failures.failure_rules import FailureReason
from ddpjob_protocol.messages.agent import Failure
from ddpjob_protocol.text import byte_size

CGROUPS = "/sys/fs/cgroup"
PROC = "/proc/self"
_NO_LIMIT = 1 << 60  # version 1 reports a number of at least this size
_KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)
_HELPER = re.compile(r"killed by signal: Killed")  # torch's words for a worker of a DataLoader


class MemoryKills:
    """The processes of the worker's cgroup that were killed because memory ran out."""

    def __init__(self, cgroups: str = CGROUPS, proc: str = PROC) -> None:
        self._folders = _folders(cgroups, proc)
        self._known = self._count()

    def news(self) -> str:
        """Return problem and remedy if a process was killed since the last call; else empty."""
        known, self._known = self._known, max(self._known, self._count())
        if self._known <= known:
            return ""
        limit = self._limit()
        what = (
            "the memory of the node ran out; give the worker a memory request that it fits in"
            if limit is None
            else f"the memory limit of {byte_size(limit)} is used up; raise it"
        )
        return f"out of memory: {what}, or make the job need less"

    def _count(self) -> int:
        for folder, counter, _ in self._folders:
            for line in _read(os.path.join(folder, counter)).splitlines():
                name, _, value = line.partition(" ")
                if name == "oom_kill" and value.strip().isdecimal():
                    return int(value)
        return 0

    def _limit(self) -> int | None:
        """Return the limit of the cgroup in bytes; None if it has none."""
        for folder, _, name in self._folders:
            text = _read(os.path.join(folder, name)).strip()
            if text.isdecimal() and int(text) < _NO_LIMIT:
                return int(text)
        return None


def explain_memory(failure: Failure, problem: str) -> Failure:
    """Return the failure; if it is a kill, and memory ran out, add problem, remedy and reason."""
    is_kill = failure.exit_code in _KILLED or _HELPER.search(failure.summary)
    if not problem or not is_kill:
        return failure
    summary = f"{failure.summary}; {problem}"
    return dataclasses.replace(
        failure, summary=summary, reason=FailureReason.OUT_OF_MEMORY.value, secondary=False
    )


def _folders(cgroups: str, proc: str) -> list[tuple[str, str, str]]:
    """Return where the cgroup of this process may be, with the names of counter and limit.

    A container sees its own cgroup at the top, whatever the path is.
    """
    found = []
    for line in _read(os.path.join(proc, "cgroup")).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            top, names = cgroups, ("memory.events", "memory.max")
        elif "memory" in controllers.split(","):
            top = os.path.join(cgroups, "memory")
            names = ("memory.oom_control", "memory.limit_in_bytes")
        else:
            continue
        found += [(os.path.join(top, path.lstrip("/")), *names), (top, *names)]
    return found


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read(1 << 16)
    except OSError:
        return ""
