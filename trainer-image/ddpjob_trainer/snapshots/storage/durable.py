"""Files and folders that outlive a power failure. Knows nothing of what is in them."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def write(path: Path, data: bytes) -> None:
    """A new file, whole and durable; its folder's entry is not yet. Raises OSError."""
    write_all([memoryview(data)], path)


def write_all(chunks: Iterable[memoryview], path: Path) -> None:
    """The same, of what comes in pieces. Raises OSError."""
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
    """Let the disk write this while the rest is still coming: promises nothing.

    So does Linux when it is told that pages which are not on the disk yet will not be needed.
    """
    with contextlib.suppress(AttributeError, OSError):  # not on every system
        os.posix_fadvise(descriptor, begin, size, os.POSIX_FADV_DONTNEED)


def sync(path: Path) -> None:
    """Makes a file's bytes or a folder's entries durable. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
