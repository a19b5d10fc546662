"""What all ranks tell each other between steps: what each has, and who sees the same directory.

Every rank calls these, in the same order; without a group there is one rank.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import distributed

if TYPE_CHECKING:
    from pathlib import Path


class StorageGroup(NamedTuple):
    """Which ranks have to do with one place. The lowest writes there and speaks for it."""

    ranks: tuple[int, ...]  # that see the same
    readers: tuple[int, ...]  # of these, those that read a snapshot where it lies
    places: int  # how many there are, over all ranks


def is_initialized() -> bool:
    """Whether there is a group."""
    return distributed.is_available() and distributed.is_initialized()


def world_size() -> int:
    """How many ranks there are."""
    return distributed.get_world_size() if is_initialized() else 1


def all_gather_objects(value: Any) -> list[Any]:
    """The values of all ranks, by rank. Raises RuntimeError if the group breaks."""
    if not is_initialized():
        return [value]
    values: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(values, value)
    return values


def gather_speeds(own: float | None) -> tuple[float, ...]:
    """Those of all ranks, by rank; who does not know its own has the mean of the others'.

    Raises RuntimeError if the group breaks.
    """
    if not is_initialized():
        return (1.0,)
    mine = torch.tensor([0.0 if own is None else own], dtype=torch.float64, device=device())
    gathered = [torch.empty_like(mine) for _ in range(distributed.get_world_size())]
    distributed.all_gather(gathered, mine)
    found = [float(each) for each in gathered]
    known = [each for each in found if each]
    mean = sum(known) / len(known) if known else 1.0
    return tuple(each or mean for each in found)


def device() -> torch.device:
    """Where tensors have to be that are sent."""
    if distributed.get_backend() == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def single_group() -> StorageGroup:
    """All ranks see one place; of those on one node the first reads for the others."""
    firsts = all_gather_objects(os.environ.get("LOCAL_RANK", "0") == "0")
    ranks = tuple(range(len(firsts)))
    return StorageGroup(ranks, tuple(rank for rank in ranks if firsts[rank]) or ranks, 1)


def ranks_sharing(directory: Path) -> tuple[tuple[int, ...], int]:
    """The ranks that see the same directory as this one, itself among them; how many there are.

    Each looks by name for a file of each other: a listing may be an old one on a network's volume.
    """
    if not is_initialized():
        return (0,), 1
    rank = distributed.get_rank()
    names = all_gather_objects(f".rank-{rank}-{secrets.token_hex(8)}")
    mine = directory / names[rank]
    with contextlib.suppress(OSError):  # to be read only: then it is taken for one of its own
        directory.mkdir(parents=True, exist_ok=True)
        mine.touch()
    all_gather_objects(None)  # all files are there
    seen = {other for other, name in enumerate(names) if (directory / name).exists()}
    ranks = tuple(sorted({rank, *seen}))
    directories = len({each[0] for each in all_gather_objects(ranks)})  # and all have looked
    with contextlib.suppress(OSError):
        mine.unlink(missing_ok=True)
    return ranks, directories
