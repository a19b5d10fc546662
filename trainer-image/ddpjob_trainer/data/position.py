"""Where a training run is in its data: what a map-style and an iterable data set have in common.

A batch is shared out over the ranks, by their speed; each takes its share in parts. The position
counts samples of the epoch that have been trained on, by all ranks together.
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
    """Samples of a batch that one rank trains on at a time."""

    weight: float  # of their mean loss, where gradients are averaged over ranks as DDP does
    is_last: bool  # of this rank's share: the optimizer steps after it


class DataPosition(abc.ABC):
    """ElasticBatchSampler, and how many of them have been trained on."""

    def __init__(self, max_samples_per_rank: int | None, speed: float | None) -> None:
        """Raises ValueError. With a `speed` every rank has one: they are told where there is a group."""
        if max_samples_per_rank is not None and max_samples_per_rank < 1:
            raise ValueError(
                f"max_samples_per_rank is {max_samples_per_rank}: use a whole number from 1 on"
            )
        if speed is not None and not 0 < speed < math.inf:
            raise ValueError(f"speed is {speed}: a number above 0 is needed")
        self._most = max_samples_per_rank  # samples that a rank can hold at a time
        self.speed = speed  # of this rank, in any unit; None: as the mean of the others
        self._speeds: tuple[float, ...] = ()  # of all ranks
        self.epoch = 0  # in which the next batch is
        self.position = 0  # samples of it that have been trained on
        self._parts_done = 0  # of the batch at hand
        self.shards: int | None = None  # that each batch is cut into, whatever the ranks; see exact
        self.seed = 0
        if speed is not None and collectives.is_initialized():
            self.sync_speeds()

    def sync_speeds(self) -> None:
        """Every rank tells how fast it is. Raises RuntimeError if the group breaks."""
        self._speeds = collectives.gather_speeds(self.speed)

    @property
    def follows_ranks(self) -> bool:
        """Whether the size of a batch depends on how many ranks there are."""
        return False

    @property
    def speeds(self) -> tuple[float, ...]:
        """How fast each rank is, compared with the others."""
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
        """What this rank does of the batch at hand."""

    def _share_of(self, position: int, count: int) -> BatchShare:
        """What this rank does of `count` samples from `position` on."""
        rank, world_size = ranks()
        speeds = self._speeds_of(world_size)
        if self.shards is not None:
            return fixed_share_of(rank, position, count, speeds, self.shards)
        return share_of(rank, position, count, speeds, self._most)

    @abc.abstractmethod
    def commit(self) -> None:
        """The batch at hand has been trained on, by all ranks."""

    @abc.abstractmethod
    def has_more(self, epochs: int) -> bool:
        """Whether there is another batch before the end of so many epochs."""

    @abc.abstractmethod
    def remaining(self, epochs: int) -> int | None:
        """ElasticBatchSampler from here to the end of so many epochs; None: nobody knows."""

    @abc.abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Where training is; the same on every rank."""

    @abc.abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of state_dict(). Raises ValueError for other data."""

    @contextlib.contextmanager
    def part(self, model: torch.nn.Module | None = None) -> Iterator[MicroBatch]:
        """Around forward and backward of a part; where that of the last one ends, the batch counts.

        Gradients of a model in DistributedDataParallel are exchanged with the last part only.
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
    """Whether the next backward of a DistributedDataParallel exchanges gradients."""
    if isinstance(model, DistributedDataParallel):
        model.require_backward_grad_sync = now


def ranks() -> tuple[int, int]:
    """This process's rank and the world size; from the environment where there is no group yet."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
