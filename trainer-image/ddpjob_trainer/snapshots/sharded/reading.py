"""Reads the parts that this rank holds out of a snapshot, range by range, into its tensors.

Memory is needed for one block of a file and one piece of a tensor only.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch

from ddpjob_trainer.snapshots.model import chunks, manifest
from ddpjob_trainer.snapshots.model.chunks import Chunk, name_of, whole
from ddpjob_trainer.snapshots.model.manifest import BLOCK_BYTES, SENSELESS, UnusableError
from ddpjob_trainer.snapshots.sharded.block_digests import VerifiedFiles
from ddpjob_trainer.tensors.safetensors_reader import HEADER_BYTES, TensorSpec, read_header
from ddpjob_trainer.tensors.safetensors_writer import NAMES, raw

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ddpjob_trainer.snapshots.storage.stored import OpenSnapshot


class Target(NamedTuple):
    """Memory for a part of a saved tensor."""

    local: torch.Tensor
    chunk: Chunk  # the part, in the coordinates of the whole tensor


class _Source(NamedTuple):
    """A saved chunk in its file."""

    file: str
    begin: int  # byte in the file
    kind: torch.dtype
    chunk: Chunk


class ShardedReader:
    """A snapshot whose tensors are read in parts, each of which is verified."""

    def __init__(self, snapshot: OpenSnapshot) -> None:
        """Read the manifest's description of the tensors. Raise UnusableError."""
        self._expected = manifest.files_of(snapshot.manifest)
        self._chunked = chunks.read_chunks(snapshot.manifest)
        self._files = VerifiedFiles(snapshot, self._expected)
        self._headers: dict[str, dict[str, tuple[int, TensorSpec]]] = {}

    def spec(self, name: str) -> TensorSpec:
        """Return the type and shape of a saved tensor. Raise UnusableError or OSError."""
        if saved := self._chunked.get(name):
            return TensorSpec(name, NAMES[saved.kind], saved.shape)
        [source] = self._sources(name)
        return TensorSpec(name, source.kind, source.chunk.shape)

    def fill(self, targets: Iterable[tuple[str, Target]]) -> None:
        """Read each part of a saved tensor into its memory. Raise UnusableError or OSError."""
        found = [
            (source, part, target)
            for name, target in targets
            for source in self._sources(name)
            if (part := source.chunk.overlap(target.chunk))
        ]
        scratch = torch.empty(BLOCK_BYTES, dtype=torch.uint8, device="cpu")
        for source, part, target in sorted(found, key=lambda each: each[0][:2]):
            for box, dim in _pieces(source.chunk, part, source.kind.itemsize):
                begin, shape = _span(source.chunk, box, dim)
                size = math.prod(shape) * source.kind.itemsize
                if size > scratch.numel():
                    scratch = torch.empty(size, dtype=torch.uint8, device="cpu")
                self._files.read(
                    source.file, source.begin + begin * source.kind.itemsize, raw(scratch[:size])
                )
                rows = Chunk((*box.offset[: dim + 1], *source.chunk.offset[dim + 1 :]), shape)
                piece = scratch[:size].view(source.kind).view(shape)[rows.slices_of(box)]
                with torch.no_grad():
                    target.local[target.chunk.slices_of(box)].copy_(piece)

    def _sources(self, name: str) -> list[_Source]:
        saved = self._chunked.get(name)
        if saved is None:
            return [self._find(name)]
        return [
            self._source(file, name_of(name, chunk), NAMES[saved.kind], chunk)
            for chunk, file in saved.chunks.items()
        ]

    def _source(self, file: str, name: str, kind: torch.dtype, chunk: Chunk) -> _Source:
        begin, spec = self._header(file).get(name, (0, None))
        if spec is None or spec[1:] != (kind, chunk.shape):
            raise UnusableError(f"its content makes no sense: {name} is not in {file}")
        return _Source(file, begin, kind, chunk)

    def _find(self, name: str) -> _Source:
        for file in self._expected:  # the first one holds them, unless equal ranks shared the write
            if found := self._header(file).get(name):
                begin, spec = found
                return _Source(file, begin, spec.kind, whole(spec.shape))
        raise UnusableError(f"its content makes no sense: {name} is in none of its files")

    def _header(self, name: str) -> dict[str, tuple[int, TensorSpec]]:
        if name not in self._headers:
            try:
                self._headers[name] = self._read_header(name)
            except SENSELESS as error:
                raise UnusableError(f"its content makes no sense: {name}: {error!r}") from error
        return self._headers[name]

    def _read_header(self, name: str) -> dict[str, tuple[int, TensorSpec]]:
        size = self._expected[name].size
        length = bytearray(8)
        self._files.read(name, 0, memoryview(length))
        content = bytearray(min(size, 8 + int.from_bytes(length, "little"), 8 + HEADER_BYTES))
        self._files.read(name, 0, memoryview(content))
        begin, specs = read_header(memoryview(content), size)
        found = {}
        for spec in specs:
            found[spec.name] = begin, spec
            begin += spec.size
        return found


def _pieces(saved: Chunk, part: Chunk, itemsize: int, dim: int = 0) -> Iterator[tuple[Chunk, int]]:
    """Yield boxes of `part` that are read at once, each with the dimension along which it has rows.

    Before that dimension a box has one index each.
    """
    if not saved.shape:
        yield part, 0
        return
    row = math.prod(saved.shape[dim + 1 :]) * itemsize
    is_deeper = row > BLOCK_BYTES and dim + 1 < len(saved.shape)
    rows = 1 if is_deeper else max(1, BLOCK_BYTES // max(row, 1))
    for first in range(0, part.shape[dim], rows):
        offset, shape = [*part.offset], [*part.shape]
        offset[dim] += first
        shape[dim] = min(rows, shape[dim] - first)
        box = Chunk(tuple(offset), tuple(shape))
        if is_deeper:
            yield from _pieces(saved, box, itemsize, dim + 1)
        else:
            yield box, dim


def _span(saved: Chunk, box: Chunk, dim: int) -> tuple[int, tuple[int, ...]]:
    """Return the first element in the file of the box's rows, and the shape of these rows."""
    if not saved.shape:
        return 0, ()
    begin = 0
    for axis in range(dim + 1):
        stride = math.prod(saved.shape[axis + 1 :])
        begin += (box.offset[axis] - saved.offset[axis]) * stride
    return begin, (*box.shape[: dim + 1], *saved.shape[dim + 1 :])
