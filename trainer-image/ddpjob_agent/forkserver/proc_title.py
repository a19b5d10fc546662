"""Sets the command line and environment that /proc shows for a process to those of a cold start.

The call is prctl(PR_SET_MM_MAP), which needs no privilege. If the kernel is built without the call,
/proc shows the values of the fork server.
"""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

PR_SET_MM, PR_SET_MM_MAP = 35, 14
# Field numbers of /proc/self/stat, as in proc(5); the first field after the name is number 3.
STAT = {
    "start_code": 26, "end_code": 27, "start_stack": 28, "start_data": 45, "end_data": 46,
    "start_brk": 47,
}  # fmt: skip
ADDRESSES = (
    "start_code", "end_code", "start_data", "end_data", "start_brk", "brk", "start_stack",
    "arg_start", "arg_end", "env_start", "env_end", "auxv",
)  # fmt: skip


class MemoryMap(ctypes.Structure):
    """A struct prctl_mm_map of linux/prctl.h."""

    _fields_ = [
        *((name, ctypes.c_uint64) for name in ADDRESSES),
        ("auxv_size", ctypes.c_uint32),
        ("exe_fd", ctypes.c_uint32),
    ]


def set_proc_cmdline(argv: Iterable[str], environment: Iterable[tuple[str, str]]) -> None:
    """Set the command line and environment in /proc; do nothing if the kernel refuses."""
    libc = ctypes.CDLL(None)
    libc.sbrk.restype = libc.malloc.restype = ctypes.c_void_p
    with open("/proc/self/stat", encoding="latin-1") as file:
        fields = file.read().rpartition(")")[2].split()
    memory = MemoryMap(**{name: int(fields[number - 3]) for name, number in STAT.items()})
    memory.brk = libc.sbrk(0)
    memory.arg_start, memory.arg_end = _write_arguments(libc, argv)
    memory.env_start, memory.env_end = _write_arguments(libc, map("=".join, environment))
    memory.exe_fd = 0xFFFFFFFF  # leaves the executable unchanged
    libc.prctl(PR_SET_MM, PR_SET_MM_MAP, ctypes.byref(memory), ctypes.sizeof(memory), 0)


def _write_arguments(libc: ctypes.CDLL, words: Iterable[str]) -> tuple[int, int]:
    """Copy the words to memory that outlives Python; return its start and end address."""
    text = b"".join(os.fsencode(word) + b"\0" for word in words)
    start = libc.malloc(len(text) + 1)
    ctypes.memmove(start, text, len(text))
    return start, start + len(text)
