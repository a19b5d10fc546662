"""How much memory this process may still use, by the count of its cgroups; what lies in memory.

Both versions of cgroups are read, from within a container and from without.
May not: know what the memory is for.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import NamedTuple

CGROUPS = Path("/sys/fs/cgroup")
PROC = Path("/proc/self")
IN_MEMORY = frozenset(("tmpfs", "ramfs"))


class MemoryHeadroom(NamedTuple):
    """Of the tightest limit, in bytes."""

    limit: int
    free: int  # of it, when what the kernel can give up at once is given up


class _Files(NamedTuple):
    """Where a version of cgroups says it."""

    limit: str
    used: str
    cached: str  # in memory.stat
    shared: str  # the same: part of `cached`, which cannot be given up


_V2 = _Files("memory.max", "memory.current", "file", "shmem")
_V1 = _Files("memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache", "total_shmem")
_NO_LIMIT = 1 << 60  # version 1 says a number of that size


def memory_headroom(cgroups: Path = CGROUPS, proc: Path = PROC) -> MemoryHeadroom | None:
    """None where there is no limit, or nobody tells."""
    found = [
        room
        for top, path, files in _hierarchies(cgroups, proc)
        for folder in (top / path, *(top / path).parents)
        if folder.is_relative_to(top) and (room := _room(folder, files)) is not None
    ]
    return min(found, key=lambda room: room.free, default=None)


def is_memory_filesystem(directory: Path, proc: Path = PROC) -> bool:
    """Whether what is written there takes memory; it, or the next folder above it, must be there."""
    there = next(each for each in (directory, *directory.parents) if each.exists()).resolve()
    kinds: dict[Path, str] = {}
    with contextlib.suppress(OSError):
        for line in (proc / "mountinfo").read_text().splitlines():
            mount, _, source = line.partition(" - ")
            at = re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), mount.split()[4])
            kinds[Path(at)] = source.split()[0]
    mounted = next((each for each in (there, *there.parents) if each in kinds), None)
    return mounted is not None and kinds[mounted] in IN_MEMORY


def _hierarchies(cgroups: Path, proc: Path) -> list[tuple[Path, str, _Files]]:
    """Where this process is, in each that counts memory."""
    found = []
    with contextlib.suppress(OSError, ValueError):  # a line of another form
        for line in (proc / "cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                found.append((cgroups, path.lstrip("/"), _V2))
            elif "memory" in controllers.split(","):
                found.append((cgroups / "memory", path.lstrip("/"), _V1))
    return found


def _room(folder: Path, files: _Files) -> MemoryHeadroom | None:
    with contextlib.suppress(OSError, ValueError, KeyError):  # "max", or nothing there
        limit = int((folder / files.limit).read_text())
        if limit >= _NO_LIMIT:
            return None
        used = int((folder / files.used).read_text())
        lines = (folder / "memory.stat").read_text().splitlines()
        stat = {name: int(value) for name, value in map(str.split, lines)}
        return MemoryHeadroom(limit, limit - used + stat[files.cached] - stat[files.shared])
    return None
