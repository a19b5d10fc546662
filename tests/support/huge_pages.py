"""Moves what torch's import left in memory to huge pages.

A fork copies the tables of all small pages: 30 ms of CPU time at 400 MB, and 2 ms with huge pages.
A process that forks hundreds of programs imports this last. If the kernel refuses, nothing changes.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch._dynamo
import torch.distributed.run  # noqa: F401 - the fork server imports both after this module

MADV_COLLAPSE = 25  # of Linux 6.1
HUGE = 2 << 20


def collapse() -> None:
    """Ask for huge pages wherever the memory of this process is its own."""
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, mode, _, _, inode, *_ = line.split()
        start, end = (int(each, 16) for each in addresses.split("-"))
        first, last = -(-start // HUGE) * HUGE, end // HUGE * HUGE
        if mode == "rw-p" and inode == "0" and first < last:
            madvise(first, last - first, MADV_COLLAPSE)


collapse()
