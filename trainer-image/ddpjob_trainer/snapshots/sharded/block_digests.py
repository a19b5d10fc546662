"""Checksums of a file's blocks, so that a reader of a range verifies the range only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ddpjob_trainer.snapshots.model import manifest
from ddpjob_trainer.snapshots.model.manifest import BLOCK_BYTES, UnusableError
from ddpjob_trainer.tensors.safetensors_writer import CHECKSUM, hasher

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ddpjob_trainer.snapshots.storage.stored import OpenSnapshot
    from ddpjob_trainer.tensors.file_digest import FileDigest


class BlockDigests:
    """The checksums of a file while it is written."""

    def __init__(self) -> None:
        self._done: list[str] = []
        self._digest: Any = hasher(CHECKSUM)
        self._size = 0  # bytes in the current block

    def passing(self, chunks: Iterator[memoryview]) -> Iterator[memoryview]:
        """Yield the file's chunks, each after its checksum."""
        for chunk in chunks:
            self._add(chunk)
            yield chunk

    def finish(self) -> tuple[str, ...]:
        """Return the checksums; only the last block may be shorter than the others."""
        if self._size:
            self._next()
        return tuple(self._done)

    def _add(self, chunk: memoryview) -> None:
        rest = chunk
        while rest:
            piece = rest[: BLOCK_BYTES - self._size]
            self._digest.update(piece)
            self._size += len(piece)
            rest = rest[len(piece) :]
            if self._size == BLOCK_BYTES:
                self._next()

    def _next(self) -> None:
        self._done.append(self._digest.hexdigest())
        self._digest, self._size = hasher(CHECKSUM), 0


class VerifiedFiles:
    """The files of a snapshot, of which each block is verified before it is used.

    A file without checksums of blocks is read and verified completely first. One block is in memory.
    """

    def __init__(self, snapshot: OpenSnapshot, expected: Mapping[str, FileDigest]) -> None:
        self._snapshot = snapshot
        self._expected = expected
        self._verified: set[str] = set()  # completely, as they have no checksums of blocks
        self._memory = memoryview(bytearray(BLOCK_BYTES))
        self._loaded: tuple[str, int] | None = None  # the block in memory

    def read(self, name: str, begin: int, into: memoryview) -> None:
        """Fill `into` with a file's bytes from `begin` on. Raise UnusableError or OSError."""
        end, expected = begin + len(into), self._expected[name]
        if not 0 <= begin <= end <= expected.size:
            raise UnusableError(f"its content makes no sense: {name} has no byte {end}")
        if not expected.blocks and name not in self._verified:
            self._verify(name, expected)
        while begin < end:
            number, at = divmod(begin, BLOCK_BYTES)
            piece = self._load(name, number, expected)[at : at + end - begin]
            into[: len(piece)] = piece
            into, begin = into[len(piece) :], begin + len(piece)

    def _load(self, name: str, number: int, expected: FileDigest) -> memoryview:
        size = min(BLOCK_BYTES, expected.size - number * BLOCK_BYTES)
        content = self._memory[:size]
        if self._loaded != (name, number):
            self._loaded = None
            self._snapshot.read(name, number * BLOCK_BYTES, content)
            if expected.blocks:
                digest = _hasher(expected.kind)
                digest.update(content)
                if digest.hexdigest() != expected.blocks[number]:
                    raise UnusableError(
                        f"it is damaged: the checksum of {name} does not match from byte "
                        f"{number * BLOCK_BYTES} on"
                    )
            self._loaded = name, number
        return content

    def _verify(self, name: str, expected: FileDigest) -> None:
        digest = _hasher(expected.kind)
        for number in range(-(-expected.size // BLOCK_BYTES)):
            digest.update(self._load(name, number, expected))
        manifest.check_digest(name, expected, digest.hexdigest())
        self._verified.add(name)


def _hasher(kind: str) -> Any:
    try:
        return hasher(kind)
    except ValueError as error:
        raise UnusableError(str(error)) from None
