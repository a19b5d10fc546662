"""The size and checksum of a file; without torch, so that snapshots can be listed quickly."""

from __future__ import annotations

from typing import NamedTuple


class FileDigest(NamedTuple):
    """The size and checksum of a file."""

    size: int
    kind: str  # of the checksum
    digest: str
    blocks: tuple[str, ...] = ()  # checksums of its blocks, for readers of a range
