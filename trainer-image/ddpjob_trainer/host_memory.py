"""Reads the free memory of this process from its cgroups and from the machine.

It supports both versions of cgroups, inside and outside of a container. It does not depend on the
use of the memory.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import NamedTuple

CGROUPS = Path("/sys/fs/cgroup")
PROC = Path("/proc/self")


class MemoryHeadroom(NamedTuple):
    """The tightest memory limit and its free part, in bytes."""

    limit: int
    free: int  # including memory that the kernel can reclaim at once
    what: str = "memory limit"  # or the machine's memory, for people


class _Files(NamedTuple):
    """The names of files and statistics in a version of cgroups."""

    limit: str
    used: str
    cached: str  # in memory.stat
    shared: str  # in memory.stat; the part of `cached` that cannot be reclaimed


_V2 = _Files("memory.max", "memory.current", "file", "shmem")
_V1 = _Files("memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache", "total_shmem")
_NO_LIMIT = 1 << 60  # version 1 reports a number of at least this size


def memory_headroom(cgroups: Path = CGROUPS, proc: Path = PROC) -> MemoryHeadroom | None:
    """Return the tightest limit, which may be the machine's memory; None if none can be read."""
    found = [
        room
        for top, path, files in _hierarchies(cgroups, proc)
        for folder in (top / path, *(top / path).parents)
        if folder.is_relative_to(top) and (room := _room(folder, files)) is not None
    ]
    if (machine := _machine(proc.parent / "meminfo")) is not None:
        found.append(machine)
    return min(found, key=lambda room: room.free, default=None)


def _hierarchies(cgroups: Path, proc: Path) -> list[tuple[Path, str, _Files]]:
    """Return the cgroup of this process in each hierarchy that counts memory."""
    found = []
    with contextlib.suppress(OSError, ValueError):  # an unknown form of line
        for line in (proc / "cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                found.append((cgroups, path.lstrip("/"), _V2))
            elif "memory" in controllers.split(","):
                found.append((cgroups / "memory", path.lstrip("/"), _V1))
    return found


def _room(folder: Path, files: _Files) -> MemoryHeadroom | None:
    with contextlib.suppress(OSError, ValueError, KeyError):  # no limit ("max"), or no file
        limit = int((folder / files.limit).read_text())
        if limit >= _NO_LIMIT:
            return None
        used = int((folder / files.used).read_text())
        lines = (folder / "memory.stat").read_text().splitlines()
        stat = {name: int(value) for name, value in map(str.split, lines)}
        return MemoryHeadroom(limit, limit - used + stat[files.cached] - stat[files.shared])
    return None


def _machine(meminfo: Path) -> MemoryHeadroom | None:
    """Return the memory of the machine, which no container may exceed."""
    with contextlib.suppress(OSError, ValueError, KeyError, IndexError):  # not on each system
        lines = (line.partition(":") for line in meminfo.read_text().splitlines())
        found = {name: int(value.split()[0]) * 1024 for name, _, value in lines}
        return MemoryHeadroom(found["MemTotal"], found["MemAvailable"], "machine's memory")
    return None
