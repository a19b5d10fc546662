"""Copies one file, chunk by chunk, with its digest. May not: know the use of the file."""

from __future__ import annotations

import contextlib
import hashlib
from typing import IO, TYPE_CHECKING, Callable

from ddpjob_agent.file_sync.disk import places

if TYPE_CHECKING:
    from ddpjob_agent.file_sync.disk.places import Place

CHUNK_BYTES = 1 << 20

Wanted = Callable[[], bool]


class CancelledReadError(Exception):
    """A read was cancelled."""


def copy_file(source: IO[bytes], target: Place | None, size: int, wanted: Wanted) -> str:
    """Copy the first `size` bytes of a file, or only read them; close it; return their digest.

    Raises OSError and CancelledReadError.
    """
    digest = hashlib.blake2b(digest_size=16)
    with contextlib.ExitStack() as stack:
        stack.enter_context(source)
        writer = stack.enter_context(places.create(target)) if target else None
        while data := source.read(min(size, CHUNK_BYTES)):
            if not wanted():
                raise CancelledReadError
            size -= len(data)
            digest.update(data)
            if writer is not None:
                writer.write(data)
    return digest.hexdigest()
