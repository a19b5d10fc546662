"""The position of training in its data: the base of map-style and iterable data sets.

The ranks share each batch in proportion to their speeds, and each rank takes its share in parts.
The position counts the samples of the epoch on which all ranks together have trained.
"""

from __future__ import annotations

import abc
import contextlib
import math
import os
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from ddpjob_trainer import collectives
from ddpjob_trainer.data.partition import BatchShare, fixed_share_of, share_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch


class MicroBatch(NamedTuple):
    """The samples of a batch that one rank trains on at a time."""

    weight: float  # of their mean loss, where gradients are averaged over ranks as DDP does
    is_last: bool  # the last part of this rank's share; the optimizer steps after this part


class DataPosition(abc.ABC):
    """A sequence of batches, and the number of its samples already trained on."""

    def __init__(self, max_samples_per_rank: int | None, speed: float | None) -> None:
        """Check the values and exchange `speed` if there is a process group. Raise ValueError.

        If one rank has a `speed`, all ranks need one.
        """
        if max_samples_per_rank is not None and max_samples_per_rank < 1:
            raise ValueError(
                f"max_samples_per_rank is {max_samples_per_rank}: use a whole number from 1 on"
            )
        if speed is not None and not 0 < speed < math.inf:
            raise ValueError(f"speed is {speed}: a number above 0 is needed")
        self._most = max_samples_per_rank  # samples that a rank can hold at a time
        self.speed = speed  # of this rank, in any unit; None: the mean of the other ranks
        self._speeds: tuple[float, ...] = ()  # of all ranks
        self.epoch = 0  # epoch of the next batch
        self.position = 0  # samples of the epoch already trained on
        self._parts_done = 0  # of the current batch
        self.shards: int | None = None  # of each batch; see `data.deterministic`
        self.seed = 0
        if speed is not None and collectives.is_initialized():
            self.sync_speeds()

    def sync_speeds(self) -> None:
        """Exchange the speeds of all ranks. Raise RuntimeError if the group breaks."""
        self._speeds = collectives.gather_speeds(self.speed)

    @property
    def follows_ranks(self) -> bool:
        """True if the size of a batch depends on the number of ranks."""
        return False

    @property
    def speeds(self) -> tuple[float, ...]:
        """The speed of each rank, in one common unit."""
        return self._speeds_of(ranks()[1])

    def _speeds_of(self, world_size: int) -> tuple[float, ...]:
        if len(self._speeds) == world_size:
            return self._speeds
        if self.speed is None or world_size == 1:
            return (1.0,) * world_size
        raise RuntimeError(
            "the speed of the other ranks is not known: give `speed` after init_process_group, on "
            "every rank, or use a Loop"
        )

    @abc.abstractmethod
    def share(self) -> BatchShare:
        """Return this rank's share of the current batch."""

    def _share_of(self, position: int, count: int) -> BatchShare:
        """Return this rank's share of the `count` samples from `position` on."""
        rank, world_size = ranks()
        speeds = self._speeds_of(world_size)
        if self.shards is not None:
            return fixed_share_of(rank, position, count, speeds, self.shards)
        return share_of(rank, position, count, speeds, self._most)

    @abc.abstractmethod
    def commit(self) -> None:
        """Move the position past the current batch; all ranks have trained on it."""

    @abc.abstractmethod
    def has_more(self, epochs: int) -> bool:
        """Return whether a batch remains before the end of epoch number `epochs`."""

    @abc.abstractmethod
    def remaining(self, epochs: int) -> int | None:
        """Return the number of batches to the end of epoch number `epochs`; None if unknown."""

    @abc.abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return the position; all ranks return equal values."""

    @abc.abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of state_dict(). Raise ValueError if the data differ."""

    @contextlib.contextmanager
    def part(self, model: torch.nn.Module | None = None) -> Iterator[MicroBatch]:
        """Wrap forward and backward of one part; the end of the last part commits the batch.

        If the model is a DistributedDataParallel, only the last part exchanges gradients.
        """
        share = self.share()
        part = MicroBatch(share.weights[self._parts_done], self._parts_done == len(share.parts) - 1)
        exchange_gradients(model, now=part.is_last)
        yield part
        self._parts_done += 1
        if part.is_last:
            self._parts_done = 0
            self.commit()


def exchange_gradients(model: torch.nn.Module | None, *, now: bool) -> None:
    """Set whether the next backward of a DistributedDataParallel exchanges gradients."""
    if isinstance(model, DistributedDataParallel):
        model.require_backward_grad_sync = now


def ranks() -> tuple[int, int]:
    """Return the rank and the world size; from the environment if there is no process group."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
