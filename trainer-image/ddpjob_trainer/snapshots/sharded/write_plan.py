"""The rank that writes each chunk of a sharded state: pure, and equal on each rank."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, NamedTuple

from ddpjob_trainer.errors import SnapshotError
from ddpjob_trainer.snapshots.model import manifest
from ddpjob_trainer.snapshots.model.chunks import Chunk, ChunkedTensor, fault_in, name_of

if TYPE_CHECKING:
    from collections.abc import Sequence


class HeldTensor(NamedTuple):
    """A DTensor, and the part of it that one rank holds."""

    kind: str  # safetensors' name of its type
    shape: tuple[int, ...]
    chunk: Chunk | None


Holding = dict[str, HeldTensor]  # of one rank, by the tensors' names


class ShardedPlan(NamedTuple):
    """The chunks that each rank writes, and their description for the manifest."""

    parts: tuple[dict[str, str], ...]  # by rank: names of chunks, with those of their tensors
    tensors: dict[str, ChunkedTensor]
    outlines: tuple[str, ...]  # of each part


def plan_write(holdings: Sequence[Holding]) -> ShardedPlan:
    """Plan the write of tensors that the ranks hold; of equal chunks, the least busy rank's.

    Raise SnapshotError if the ranks hold different tensors, or not all of one.
    """
    parts: list[dict[str, str]] = [{} for _ in holdings]
    loads = [0] * len(holdings)
    tensors = {}
    for name, first in holdings[0].items():
        holders: dict[Chunk, list[int]] = {}
        for rank, holding in enumerate(holdings):
            own = holding.get(name)
            if own is None or own[:2] != first[:2] or len(holding) != len(holdings[0]):
                raise SnapshotError(
                    f"Rank {rank} and rank 0 hold different tensors, such as {name}: a snapshot "
                    "holds one model, of which each rank has a part. Pipelines of several models "
                    "cannot be saved together."
                )
            if own.chunk is not None:
                holders.setdefault(own.chunk, []).append(rank)
        if fault := fault_in(first.shape, [*holders]):
            raise SnapshotError(f"{name} cannot be saved: {fault}. {REMEDY}")
        files = {}
        for chunk, ranks in holders.items():
            rank = min(ranks, key=lambda each: (loads[each], each))
            loads[rank] += chunk.elements
            parts[rank][name_of(name, chunk)] = name
            files[chunk] = manifest.part_name(rank)
        tensors[name] = ChunkedTensor(first.kind, first.shape, files)
    outlines = (json.dumps([number, sorted(part)]).encode() for number, part in enumerate(parts))
    return ShardedPlan(
        tuple(parts), tensors, tuple(hashlib.sha256(each).hexdigest() for each in outlines)
    )


REMEDY = "Save with torch.distributed.checkpoint, or shard it so that each rank holds one range."
