"""The shares of a batch by rank: pure functions, so each rank computes all shares without messages.

The order of an epoch is one permutation of the data set, drawn from the seed and the epoch alone. A
step takes the next samples of this order, and each rank gets one contiguous piece. The number of
ranks decides which rank trains on a sample, never when or how often. This module must not depend on
process groups, loaders or models.
"""

from __future__ import annotations

import functools
import hashlib
import math
from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

_ROUNDING = 1e-9  # tolerance of the products and quotients of weights that are not whole numbers


class BatchShare(NamedTuple):
    """The share of one rank in one batch."""

    first: int  # first sample of the share, in the epoch's order
    parts: tuple[int, ...]  # samples of each part
    weights: tuple[float, ...]  # of each part's mean loss, where gradients are averaged over ranks
    shards: tuple[int, ...] = ()  # in deterministic mode: the shard of the batch that each part is
    filled: int = 0  # shards of the batch, from the first on, that hold samples


def epoch_order(samples: int, seed: int, epoch: int) -> torch.Tensor:
    """Return the samples of an epoch in training order; int64, on the CPU."""
    return torch.randperm(samples, generator=epoch_generator(seed, epoch), device="cpu")


def epoch_generator(seed: int, epoch: int) -> torch.Generator:
    """Return a generator whose numbers follow from the seed and the epoch alone."""
    digest = hashlib.sha256(f"{seed}/{epoch}".encode()).digest()
    return torch.Generator("cpu").manual_seed(int.from_bytes(digest[:8], "big") >> 1)


def split(count: int, weights: Sequence[float], least: int = 1) -> list[int]:
    """Split `count` in proportion, rounded up while samples last: 30 over 4 equals is 8/8/8/6.

    Each size is 0 or at least `least`. A `count` below `least` stays whole.
    """
    sizes, left = _split(count, weights), list(weights)
    while any(0 < size < least for size in sizes) and sum(size > 0 for size in sizes) > 1:
        slowest = min((each, -rank) for rank, each in enumerate(left) if each > 0)[1]
        left[-slowest] = 0.0
        sizes = _split(count, left)
    return sizes


def _split(count: int, weights: Sequence[float]) -> list[int]:
    total, rest = sum(weights), count
    sizes = []
    for weight in weights:
        sizes.append(min(rest, math.ceil(count * weight / total - _ROUNDING)))
        rest -= sizes[-1]
    return sizes


@functools.lru_cache(maxsize=256)  # called for the fetch of a batch and for its step
def share_of(
    rank: int,
    position: int,
    count: int,
    weights: tuple[float, ...],
    max_samples_per_rank: int | None = None,
    min_samples_per_rank: int = 1,
) -> BatchShare:
    """Return the share of `rank` in the `count` samples from `position` on.

    A part has `max_samples_per_rank` samples at most. A share and its parts have
    `min_samples_per_rank` samples at least, unless the batch has fewer. A rank without samples gets
    the batch's first part with weight 0, because all ranks must take part in the collectives.
    """
    sizes = split(count, weights, min_samples_per_rank)
    mine, world_size = sizes[rank], len(sizes)
    most = max_samples_per_rank or count
    if mine == 0:
        first = next(size for size in sizes if size)
        return BatchShare(position, (_parts(first, most, min_samples_per_rank)[0],), (0.0,))
    parts = _parts(mine, most, min_samples_per_rank)
    return BatchShare(
        position + sum(sizes[:rank]), tuple(parts), tuple(p * world_size / count for p in parts)
    )


def _parts(count: int, most: int, least: int) -> list[int]:
    """Split a share into parts of `most` samples; the last two are evened out up to `least`."""
    parts = [most] * (count // most) + [count % most] * (count % most > 0)
    missing = min(least, count) - parts[-1]
    if missing > 0:
        parts[-2:] = [parts[-2] - missing, parts[-1] + missing]
    return parts


def shards_of(weights: Sequence[float], shards: int) -> list[range]:
    """Return the range of the batch's shards that each rank has."""
    found, begin = [], 0
    for size in split(shards, weights):
        found.append(range(begin, begin + size))
        begin += size
    return found


def fixed_share_of(
    rank: int, position: int, count: int, weights: Sequence[float], shards: int, least: int = 1
) -> BatchShare:
    """Return the share of `rank` if a batch is always cut into `shards`, one part per shard.

    The weights of the parts are for a sum over all shards. A rank may have no shards.
    """
    sizes = split(count, [1.0] * shards, least)
    mine = shards_of(weights, shards)[rank]
    own = [shard for shard in mine if sizes[shard]]
    return BatchShare(
        position + sum(sizes[: mine.start]),
        tuple(sizes[shard] for shard in own),
        tuple(sizes[shard] / count for shard in own),
        tuple(own),
        filled=sum(size > 0 for size in sizes),
    )
