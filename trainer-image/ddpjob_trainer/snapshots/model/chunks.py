"""Tensors that are saved in chunks: which range of a tensor each chunk holds, and in which file.

A chunk is a box in the coordinates of the whole tensor. This module is pure, except `assemble`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from ddpjob_trainer.snapshots.model.manifest import SENSELESS, UnusableError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch


class Chunk(NamedTuple):
    """A box within a tensor: its first index and its length, per dimension."""

    offset: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def end(self) -> tuple[int, ...]:
        """The index after the last one, per dimension."""
        return tuple(map(sum, zip(self.offset, self.shape, strict=True)))

    def overlap(self, other: Chunk) -> Chunk | None:
        """Return the box that both hold; None if they have no element in common."""
        first = tuple(map(max, zip(self.offset, other.offset, strict=True)))
        last = tuple(map(min, zip(self.end, other.end, strict=True)))
        shape = tuple(end - begin for begin, end in zip(first, last, strict=True))
        return Chunk(first, shape) if all(length > 0 for length in shape) else None

    def slices_of(self, inner: Chunk) -> tuple[slice, ...]:
        """Return where `inner`, a box within this one, is in a tensor that holds this box."""
        return tuple(
            slice(begin - mine, begin - mine + length)
            for mine, begin, length in zip(self.offset, inner.offset, inner.shape, strict=True)
        )


def whole(shape: Sequence[int]) -> Chunk:
    """Return the box of a whole tensor."""
    return Chunk((0,) * len(shape), tuple(shape))


class ChunkedTensor(NamedTuple):
    """A tensor that is saved in chunks."""

    kind: str  # safetensors' name of its type
    shape: tuple[int, ...]
    chunks: dict[Chunk, str]  # with the name of the file that holds each


def name_of(tensor: str, chunk: Chunk) -> str:
    """Return the name of a chunk in its file, such as model.weight[0:2,0:3]."""
    ranges = (f"{begin}:{end}" for begin, end in zip(chunk.offset, chunk.end, strict=True))
    return f"{tensor}[{','.join(ranges)}]"


def fault_in(shape: tuple[int, ...], chunks: Sequence[Chunk]) -> str:
    """Return why these chunks are not the whole tensor, each element once; empty if they are."""
    total = whole(shape)
    ordered = sorted(chunks)
    for number, chunk in enumerate(ordered):
        if len(chunk.offset) != len(shape) or (chunk.elements and total.overlap(chunk) != chunk):
            return f"its chunk at {[*chunk.offset]} lies outside of its shape {[*shape]}"
        for other in ordered[number + 1 :]:
            if shape and other.offset[0] >= chunk.end[0]:
                break
            if chunk.overlap(other):
                return f"its chunks at {[*chunk.offset]} and {[*other.offset]} overlap"
    held = sum(chunk.elements for chunk in chunks)
    return (
        "" if held == total.elements else f"its chunks hold {held:,} of {total.elements:,} elements"
    )


def to_json(tensors: Mapping[str, ChunkedTensor]) -> dict[str, Any]:
    """Return the manifest's entry."""
    return {
        name: {
            "dtype": tensor.kind,
            "shape": tensor.shape,
            "chunks": [
                {"offset": chunk.offset, "shape": chunk.shape, "file": file}
                for chunk, file in tensor.chunks.items()
            ],
        }
        for name, tensor in tensors.items()
    }


def read_chunks(manifest: Mapping[str, Any]) -> dict[str, ChunkedTensor]:
    """Return the chunked tensors of a manifest by name. Raise UnusableError."""
    found: dict[str, ChunkedTensor] = {}
    try:
        for name, entry in manifest.get("sharded", {}).items():
            chunks = {
                Chunk(_lengths(each["offset"]), _lengths(each["shape"])): str(each["file"])
                for each in entry["chunks"]
            }
            tensor = ChunkedTensor(str(entry["dtype"]), _lengths(entry["shape"]), chunks)
            if fault := fault_in(tensor.shape, [*chunks]):
                raise UnusableError(f"its content makes no sense: {name}: {fault}")
            if unknown := {*chunks.values()} - {*manifest["files"]}:
                raise UnusableError(f"its content makes no sense: no file {unknown.pop()} in it")
            found[name] = tensor
    except SENSELESS as error:
        raise UnusableError(f"its content makes no sense: {error!r}") from error
    return found


def _lengths(node: Any) -> tuple[int, ...]:
    if not all(type(each) is int and each >= 0 for each in node):
        raise ValueError(f"{node} has no place in a shape")
    return tuple(node)


def assemble(
    manifest: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Return the tensors of all files of a snapshot, with chunks put together.

    Raise KeyError, RuntimeError or UnusableError.
    """
    import torch  # noqa: PLC0415 - a list of snapshots needs no torch

    from ddpjob_trainer.tensors.safetensors_writer import NAMES  # noqa: PLC0415 - the same

    chunked = read_chunks(manifest)
    if not chunked:
        return {**tensors}
    rest = {**tensors}
    for name, saved in chunked.items():
        parts = {chunk: rest.pop(name_of(name, chunk)) for chunk in saved.chunks}
        rest[name] = torch.empty(saved.shape, dtype=NAMES[saved.kind], device="cpu")
        for chunk, part in parts.items():
            rest[name][whole(saved.shape).slices_of(chunk)] = part
    return rest
