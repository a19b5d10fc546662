"""The part of each DTensor that this rank holds, by torch's own description of it."""

from __future__ import annotations

import itertools
import sys
from typing import TYPE_CHECKING, Any

import torch

from ddpjob_trainer.errors import SnapshotError
from ddpjob_trainer.snapshots.model.chunks import Chunk

if TYPE_CHECKING:
    from collections.abc import Mapping


def is_dtensor(value: Any) -> bool:
    """Return whether a value is a DTensor; import nothing, as there is none before its import."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def is_sharded(model: torch.nn.Module) -> bool:
    """Return whether ranks hold parts of this model, so that all of them must save and load."""
    return any(map(is_dtensor, itertools.chain(model.parameters(), model.buffers())))


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor in which this rank holds its part, in the same memory."""
    local: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    return local.detach()


def chunk_of(tensor: Any, path: str) -> Chunk | None:
    """Return the part of a DTensor that this rank holds; None if it holds no element.

    Raise SnapshotError for a tensor that has no such part.
    """
    try:
        [part] = tensor.__create_chunk_list__()
    except (RuntimeError, ValueError) as error:
        raise SnapshotError(
            f"{path} is a DTensor with placements {tensor.placements}, which a snapshot cannot "
            f"hold: {error}. Redistribute it to Shard or Replicate placements before save()."
        ) from error
    chunk = Chunk(tuple(part.offsets), tuple(part.sizes))
    if (
        not chunk.elements or len(chunk.offset) != tensor.ndim
    ):  # also if the rank is not in its mesh
        return None
    if tuple(local_of(tensor).shape) != chunk.shape:
        raise SnapshotError(
            f"{path}: this rank holds {[*local_of(tensor).shape]} of a DTensor where "
            f"{[*chunk.shape]} belongs: a snapshot cannot hold it"
        )
    return chunk


def hollow(state: Any, found: dict[int, tuple[torch.Tensor, Any]]) -> Any:
    """Return a state whose DTensors are replaced by tensors of equal shape without memory.

    Each stand-in goes into `found`, by the address of its memory, with the DTensor.
    """

    def visit(value: Any) -> Any:
        if is_dtensor(value):
            stand_in = torch.empty((), dtype=value.dtype, device="cpu").expand(value.shape)
            found[stand_in.untyped_storage().data_ptr()] = stand_in, value
            return stand_in
        if isinstance(value, dict):
            pairs: Mapping[Any, Any] = {key: visit(each) for key, each in value.items()}
            return pairs
        if type(value) in (list, tuple):
            return type(value)(map(visit, value))
        return value

    return visit(state)
