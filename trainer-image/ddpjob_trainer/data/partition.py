"""Who trains on which samples: pure functions, so that every rank knows all shares without a word.

The order of an epoch is one permutation of the data set, drawn from the seed and the epoch alone.
A step takes the next samples of it, and the ranks share them out in one piece each. How many
ranks there are changes who trains on a sample, never when, nor how often.
May not: know of groups, loaders and models.
"""

from __future__ import annotations

import functools
import hashlib
import math
from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

_ROUNDING = 1e-9  # what weights that are no whole numbers may be off by


class BatchShare(NamedTuple):
    """What one rank does of one batch."""

    first: int  # of its samples, in the epoch's order
    parts: tuple[int, ...]  # so many samples at a time
    weights: tuple[float, ...]  # of each part's mean loss, where gradients are averaged over ranks
    shards: tuple[int, ...] = ()  # in deterministic mode: which shard of the batch each part is
    filled: int = 0  # and how many shards of the batch, from the first on, hold samples


def epoch_order(samples: int, seed: int, epoch: int) -> torch.Tensor:
    """The samples of an epoch in the order in which they are trained on; int64, on the CPU."""
    digest = hashlib.sha256(f"{seed}/{epoch}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
    return torch.randperm(samples, generator=generator)


def split(count: int, weights: Sequence[float]) -> list[int]:
    """Shares in proportion, rounded up as long as there are enough: 30 over 4 equals is 8/8/8/6."""
    total, rest = sum(weights), count
    sizes = []
    for weight in weights:
        sizes.append(min(rest, math.ceil(count * weight / total - _ROUNDING)))
        rest -= sizes[-1]
    return sizes


@functools.lru_cache(maxsize=256)  # asked for when a batch is fetched, and when it is trained on
def share_of(
    rank: int,
    position: int,
    count: int,
    weights: tuple[float, ...],
    max_samples_per_rank: int | None = None,
) -> BatchShare:
    """What `rank` does of the `count` samples from `position` on, `max_samples_per_rank` at a time.

    Who gets nothing does what rank 0 does first, with the weight 0: all ranks must take part in
    the collectives.
    """
    sizes = split(count, weights)
    mine, world_size = sizes[rank], len(sizes)
    max_samples_per_rank = max_samples_per_rank or count
    if mine == 0:
        return BatchShare(position, (min(max_samples_per_rank, sizes[0]),), (0.0,))
    parts = [max_samples_per_rank] * (mine // max_samples_per_rank) + [
        mine % max_samples_per_rank
    ] * (mine % max_samples_per_rank > 0)
    return BatchShare(
        position + sum(sizes[:rank]), tuple(parts), tuple(p * world_size / count for p in parts)
    )


def shards_of(weights: Sequence[float], shards: int) -> list[range]:
    """Which of the shards of a batch each rank has."""
    found, begin = [], 0
    for size in split(shards, weights):
        found.append(range(begin, begin + size))
        begin += size
    return found


def fixed_share_of(
    rank: int, position: int, count: int, weights: Sequence[float], shards: int
) -> BatchShare:
    """What `rank` does where a batch is always cut into the same `shards`, one part each.

    Weights are for a sum over all shards. A rank may get none.
    """
    sizes = split(count, [1.0] * shards)
    mine = shards_of(weights, shards)[rank]
    own = [shard for shard in mine if sizes[shard]]
    return BatchShare(
        position + sum(sizes[: mine.start]),
        tuple(sizes[shard] for shard in own),
        tuple(sizes[shard] / count for shard in own),
        tuple(own),
        filled=sum(size > 0 for size in sizes),
    )
