"""Reads tensors from a safetensors file and computes its checksum, in one pass.

The file is on a disk or in a bucket: the caller gives a function that reads a range of it. This
module does not know training state or folders. `safetensors_writer` writes such files.
"""

from __future__ import annotations

import itertools
import json
import math
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import torch

from ddpjob_trainer.tensors.safetensors_writer import CHUNK_BYTES, NAMES, hasher, raw

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    ReadRange = Callable[[int, Sequence[memoryview]], None]  # fills memory from a byte on

HEADER_BYTES = 1 << 28  # a larger header is not read
FIRST_BYTES = 64 << 10  # are read at once; most headers are shorter


class TensorSpec(NamedTuple):
    """The name, type and shape of a tensor."""

    name: str
    kind: torch.dtype
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Size in bytes."""
        return self.kind.itemsize * math.prod(self.shape)


class SafetensorsReader:
    """A safetensors file, read once: first its outlines, then its tensors."""

    def __init__(self, read: ReadRange, end: int, kind: str, readers: int = 1) -> None:
        """Read the header of a file of `end` bytes; `kind` is that of the checksum.

        `readers` reads may run at the same time. Raise KeyError, TypeError or ValueError, and the
        exceptions of `read`.
        """
        self._digest = hasher(kind)
        if end < 8:
            raise ValueError(f"it has {end} bytes, fewer than its header")
        header = memoryview(bytearray(min(end, FIRST_BYTES)))
        read(0, [header])
        size = 8 + _header_size(header[:8], end)
        if size > len(header):
            header = memoryview(bytearray(size))
            read(0, [header])
        header = header[:size]
        self._digest.update(header)
        self._read = read
        self._readers = readers
        self._begin, self.outlines = read_header(header, end)

    def read(
        self,
        each: Callable[[torch.Tensor], None] | None = None,
        memory: Mapping[str, torch.Tensor] | None = None,
    ) -> tuple[dict[str, torch.Tensor], str]:
        """Return the tensors and the checksum; each tensor in `memory`, or in new aligned memory.

        Mapped tensors would not be aligned: their sums round differently, and the resumed run would
        diverge from an undisturbed one. Call `each` with every tensor, before its verification.
        Raise ValueError or RuntimeError, and the exceptions of `each` and of the reads.
        """
        found = {each.name: memory_for(each, memory) for each in self.outlines}
        pieces = list(_pieces(found.values()))
        begins = itertools.accumulate((piece.size for piece in pieces), initial=self._begin)
        reader = ThreadPoolExecutor(self._readers)  # while this thread computes the checksum
        try:
            filled = reader.map(lambda at, piece: self._read(at, piece.views), begins, pieces)
            for piece, _ in zip(pieces, filled, strict=True):
                for view in piece.views:
                    self._digest.update(view)
                if each is not None:
                    for tensor in piece.whole:
                        each(tensor)
        finally:
            reader.shutdown(cancel_futures=True)
        return found, self._digest.hexdigest()


def memory_for(spec: TensorSpec, memory: Mapping[str, torch.Tensor] | None) -> torch.Tensor:
    """Return the given memory for a tensor, or new memory."""
    if memory and spec.name in memory:
        return memory[spec.name]
    return torch.empty(spec.shape, dtype=spec.kind, device="cpu")


def _header_size(content: bytes | memoryview, end: int) -> int:
    """Return the size of the header in bytes. Raise ValueError if the file cannot have it."""
    size = int.from_bytes(content, "little")
    if size > min(end - 8, HEADER_BYTES):
        raise ValueError(f"its header of {size:,} bytes does not fit in {end:,} bytes")
    return size


def read_header(content: memoryview, end: int) -> tuple[int, list[TensorSpec]]:
    """Return the offset of the first tensor, and the tensors' outlines in the file's order.

    `content` begins like the file, whose size is `end`. Raise KeyError, TypeError or ValueError,
    also if the tensors do not fill the file.
    """
    begin = 8 + _header_size(content[:8], end)
    header = json.loads(bytes(content[8:begin]))
    header.pop("__metadata__", None)
    outlines, at = [], begin
    for name, entry in sorted(header.items(), key=lambda each: each[1]["data_offsets"]):
        if not all(type(length) is int and length >= 0 for length in entry["shape"]):
            raise ValueError(f"{name} has the shape {entry['shape']}")
        outline = TensorSpec(name, NAMES[entry["dtype"]], tuple(entry["shape"]))
        if entry["data_offsets"] != [at - begin, at - begin + outline.size]:
            raise ValueError(f"{name} does not begin where the tensor before it ends")
        outlines.append(outline)
        at += outline.size
    if at != end:
        raise ValueError(f"its tensors end at byte {at} of {end}")
    return begin, outlines


class _Piece(NamedTuple):
    """A range of the file that is read at once."""

    views: list[memoryview]  # memory to fill, in order
    whole: list[torch.Tensor]  # complete with this piece

    @property
    def size(self) -> int:
        """Size in bytes."""
        return sum(map(len, self.views))


def _pieces(tensors: Iterable[torch.Tensor]) -> Iterator[_Piece]:
    piece, size = _Piece([], []), 0
    for tensor in tensors:
        rest = raw(tensor.view(-1).view(torch.uint8)) if tensor.numel() else memoryview(b"")
        while rest:
            view = rest[: CHUNK_BYTES - size]
            rest = rest[len(view) :]
            piece.views.append(view)
            size += len(view)
            if rest:
                yield piece
                piece, size = _Piece([], []), 0
        piece.whole.append(tensor)
        if size == CHUNK_BYTES:
            yield piece
            piece, size = _Piece([], []), 0
    yield piece


def checksum(read: ReadRange, end: int, kind: str, readers: int = 1) -> str:
    """Return the checksum of a file of `end` bytes. Raise ValueError for an unavailable kind.

    `readers` reads may run at the same time. Raise also the exceptions of `read`.
    """
    digest = hasher(kind)
    blocks = [memoryview(bytearray(min(CHUNK_BYTES, end))) for _ in range(readers)]
    with ThreadPoolExecutor(readers) as reader:
        for begin in range(0, end, readers * CHUNK_BYTES):
            begins = range(begin, min(end, begin + readers * CHUNK_BYTES), CHUNK_BYTES)
            views = [block[: end - at] for block, at in zip(blocks, begins, strict=False)]
            for view, _ in zip(
                views, reader.map(lambda at, v: read(at, [v]), begins, views), strict=True
            ):
                digest.update(view)
    found: str = digest.hexdigest()
    return found
