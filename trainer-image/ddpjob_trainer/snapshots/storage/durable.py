"""Files and folders that survive a power failure. This module does not depend on their contents."""

from __future__ import annotations

import contextlib
import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def read(path: Path, most: int) -> bytes:
    """Return the bytes of a file. Raise OSError, or ValueError for another kind or a larger one."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise ValueError(f"{path.name} is not a file")
    if found.st_size > most:
        raise ValueError(f"{path.name} has {found.st_size:,} bytes, too many to be read")
    return path.read_bytes()


def write(path: Path, data: bytes) -> None:
    """Write a new file durably, except its entry in the folder. Raise OSError."""
    write_all([memoryview(data)], path)


def write_all(chunks: Iterable[memoryview], path: Path) -> None:
    """Write chunks to a new file durably, except its entry in the folder. Raise OSError."""
    with path.open("xb", buffering=0) as file:
        begin = 0
        for chunk in chunks:
            rest = chunk
            while rest:
                rest = rest[file.write(rest) :]
            _begin_to_sync(file.fileno(), begin, len(chunk))
            begin += len(chunk)
        os.fsync(file.fileno())


def _begin_to_sync(descriptor: int, begin: int, size: int) -> None:
    """Start the write to disk while further chunks are still due; no guarantee.

    Linux starts it if a program declares that unwritten pages are not needed any more.
    """
    with contextlib.suppress(AttributeError, OSError):  # not on each system
        os.posix_fadvise(descriptor, begin, size, os.POSIX_FADV_DONTNEED)


def sync(path: Path) -> None:
    """Make a file's bytes or a folder's entries durable. Raise OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
