"""Reads tensors from a safetensors file and computes its checksum, in one pass.

This module does not know training state or folders. `safetensors_writer` writes such files.
"""

from __future__ import annotations

import json
import math
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import torch

from ddpjob_trainer.tensors.safetensors_writer import CHUNK_BYTES, NAMES, hasher, raw

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from io import FileIO
    from pathlib import Path


HEADER_BYTES = 1 << 28  # a larger header is not read


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

    def __init__(self, path: Path, kind: str) -> None:
        """Read the header; `kind` is that of the checksum.

        Raise OSError, KeyError, TypeError or ValueError.
        """
        self._digest = hasher(kind)
        with path.open("rb", buffering=0) as file:
            end = os.fstat(file.fileno()).st_size
            size = file.read(8)
            header = size + file.read(_header_size(size, end))
        self._digest.update(header)
        self._path = path
        self._begin, self.outlines = read_header(memoryview(header), end)

    def read(
        self, each: Callable[[torch.Tensor], None] | None = None
    ) -> tuple[dict[str, torch.Tensor], str]:
        """Return the tensors, each in its own aligned memory, and the checksum.

        Mapped tensors would not be aligned: their sums round differently, and the resumed run would
        diverge from an undisturbed one. Call `each` with every tensor, before its verification.
        Raise OSError, ValueError, RuntimeError, and the exceptions of `each`.
        """
        found = {
            name: torch.empty(shape, dtype=kind, device="cpu")
            for name, kind, shape in self.outlines
        }
        pieces = list(_pieces(found.values()))
        with self._path.open("rb", buffering=0) as file:
            file.seek(self._begin)
            reader = ThreadPoolExecutor(1)  # reads while this thread computes the checksum
            try:
                filled = reader.map(lambda piece: _fill(file, piece), pieces)
                for piece, _ in zip(pieces, filled, strict=True):
                    for view in piece.views:
                        self._digest.update(view)
                    if each is not None:
                        for tensor in piece.whole:
                            each(tensor)
            finally:
                reader.shutdown(cancel_futures=True)
        return found, self._digest.hexdigest()


def tensors(block: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return aligned copies of the tensors of a safetensors file in memory.

    Raise KeyError, TypeError, ValueError or RuntimeError for an invalid file.
    """
    at, outlines = read_header(raw(block), block.numel())
    found = {}
    for each in outlines:
        found[each.name] = block[at : at + each.size].clone().view(each.kind).view(each.shape)
        at += each.size
    return found


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


def _fill(file: FileIO, piece: _Piece) -> None:
    for view in piece.views:
        rest = view
        while rest:
            count = file.readinto(rest)
            if not count:
                raise ValueError("the file ends early")
            rest = rest[count:]


def checksum(path: Path, kind: str) -> str:
    """Return the checksum of a file. Raise OSError, or ValueError for an unavailable kind."""
    digest = hasher(kind)
    with path.open("rb", buffering=0) as file:
        while block := file.read(CHUNK_BYTES):
            digest.update(block)
    found: str = digest.hexdigest()
    return found
