"""Exchanges of all ranks between steps: their values, and the directories that they share.

Every rank calls these functions, in equal order. Without a group there is one rank.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import distributed

from ddpjob_trainer.errors import SnapshotError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class StorageGroup(NamedTuple):
    """The ranks that share one storage. The lowest rank writes there and reports for the group."""

    ranks: tuple[int, ...]  # that share the storage
    readers: tuple[int, ...]  # those that read a snapshot from the storage
    storages: int  # number of distinct storages of all ranks


def is_initialized() -> bool:
    """Return whether there is a group."""
    return distributed.is_available() and distributed.is_initialized()


def world_size() -> int:
    """Return the number of ranks."""
    return distributed.get_world_size() if is_initialized() else 1


def rank() -> int:
    """Return this process's rank; 0 without a group, for any environment."""
    return distributed.get_rank() if is_initialized() else 0


def ranks() -> tuple[int, int]:
    """Return the rank and the world size; from the environment without a group."""
    if is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def check_group() -> None:
    """Raise SnapshotError if the environment names other ranks, but there is no group yet."""
    size = os.environ.get("WORLD_SIZE", "1")
    if not is_initialized() and size.isdecimal() and int(size) > 1:
        raise SnapshotError(
            f"load() was called before there is a process group, and WORLD_SIZE is {size}: each rank "
            "would load alone, and ranks could train from different states. Call "
            "torch.distributed.init_process_group() first, then load()."
        )


def all_gather_objects(value: Any) -> list[Any]:
    """Return the values of all ranks, by rank. Raises RuntimeError if the group breaks."""
    if not is_initialized():
        return [value]
    values: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(values, value)
    return values


def all_gather_results(value: Any, problem: Exception | None) -> list[Any]:
    """Return the values of all ranks; raise the problem of this rank, or else the first one of another."""
    gathered = all_gather_objects((value, problem))
    if problem is not None:
        raise problem
    for _, each in gathered:
        if each is not None:
            raise each
    return [each for each, _ in gathered]


@contextlib.contextmanager
def raising_together() -> Iterator[None]:
    """Run a block without collectives on every rank; a SnapshotError of one rank is raised on all."""
    problem = None
    try:
        yield
    except SnapshotError as error:
        problem = error
    all_gather_results(None, problem)


def gather_speeds(own: float | None) -> tuple[float, ...]:
    """Return the speeds of all ranks, by rank; an unknown speed counts as the mean of the others.

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
    """Return the device that tensors must be on for communication."""
    if distributed.get_backend() == "nccl":  # without a backend for the CPU
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def single_group() -> StorageGroup:
    """Return the group in which all ranks share one storage; one rank of each node reads."""
    firsts = all_gather_objects(os.environ.get("LOCAL_RANK", "0") == "0")
    ranks = tuple(range(len(firsts)))
    return StorageGroup(ranks, tuple(rank for rank in ranks if firsts[rank]) or ranks, 1)


def ranks_sharing(directory: Path) -> tuple[tuple[int, ...], int]:
    """Return the ranks that share this directory, and the number of distinct directories.

    The ranks include this one. Each rank looks up the file of every other rank by name, as the
    listing of a network volume may be stale.
    """
    if not is_initialized():
        return (0,), 1
    rank = distributed.get_rank()
    names = all_gather_objects(f".rank-{rank}-{secrets.token_hex(8)}")
    mine = directory / names[rank]
    with contextlib.suppress(OSError):  # a read-only directory counts as not shared
        directory.mkdir(parents=True, exist_ok=True)
        mine.touch()
    all_gather_objects(None)  # a barrier: all files exist
    seen = {other for other, name in enumerate(names) if (directory / name).exists()}
    ranks = tuple(sorted({rank, *seen}))
    directories = len({each[0] for each in all_gather_objects(ranks)})  # also a barrier
    with contextlib.suppress(OSError):
        mine.unlink(missing_ok=True)
    return ranks, directories
