"""The position of training in its data: the base of map-style and iterable data sets.

The ranks share each batch in proportion to their speeds, and each rank takes its share in parts.
The position counts the samples of the epoch on which all ranks together have trained.
"""

from __future__ import annotations

import abc
import contextlib
import math
from typing import TYPE_CHECKING, Any

from torch.nn.parallel import DistributedDataParallel

from ddpjob_trainer import collectives
from ddpjob_trainer.data.loss_weights import LossWeights
from ddpjob_trainer.data.partition import BatchShare, fixed_share_of, share_of, split

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from ddpjob_trainer.data.loss_weights import Count


class MicroBatch:
    """The samples of a batch that one rank trains on at a time."""

    def __init__(self, weight: float, weights: LossWeights, *, is_last: bool) -> None:
        self.weight = weight  # of their mean loss, where gradients are averaged over ranks
        self.is_last = is_last  # the last part of this rank's share; then the optimizer steps
        self._weights = weights

    def backward(self, loss: torch.Tensor, count: Count | None = None) -> None:
        """Run backward on the part's mean `loss`, times its weight; `count` as in `Step.backward`."""
        self._weights.backward(loss, count)


class DataPosition(abc.ABC):
    """A sequence of batches, and the number of its samples already trained on."""

    def __init__(
        self, max_samples_per_rank: int | None, speed: float | None, min_samples_per_rank: int = 1
    ) -> None:
        """Check the values and exchange `speed` if there is a process group. Raise ValueError.

        If one rank has a `speed`, all ranks need one.
        """
        if max_samples_per_rank is not None and max_samples_per_rank < 1:
            raise ValueError(
                f"max_samples_per_rank is {max_samples_per_rank}: use a whole number from 1 on"
            )
        if min_samples_per_rank < 1:
            raise ValueError(
                f"min_samples_per_rank is {min_samples_per_rank}: use a whole number from 1 on"
            )
        if (max_samples_per_rank or math.inf) < 2 * min_samples_per_rank - 1:
            raise ValueError(
                f"max_samples_per_rank is {max_samples_per_rank}, min_samples_per_rank "
                f"{min_samples_per_rank}: parts of that size need a maximum of "
                f"{2 * min_samples_per_rank - 1} or more"
            )
        if speed is not None and not 0 < speed < math.inf:
            raise ValueError(f"speed is {speed}: a number above 0 is needed")
        self._most = max_samples_per_rank  # samples that a rank can hold at a time
        self._least = min_samples_per_rank  # the same, for a share that has any
        self.speed = speed  # of this rank, in any unit; None: the mean of the other ranks
        self._speeds: tuple[float, ...] = ()  # of all ranks
        self.epoch = 0  # epoch of the next batch
        self.position = 0  # samples of the epoch already trained on
        self._parts_done = 0  # of the current batch
        self.shards: int | None = None  # of each batch; see `data.deterministic`
        self.accumulate = 1  # batches of the script that form one batch here, in as many parts
        self.seed = 0
        self._weights = LossWeights(())
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
        return self._speeds_of(collectives.ranks()[1])

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
        rank, world_size = collectives.ranks()
        speeds = self._speeds_of(world_size)
        if self.shards is not None:
            return fixed_share_of(rank, position, count, speeds, self.shards, self._least)
        most = self._most_at_once(rank, count, speeds)
        return share_of(rank, position, count, speeds, most, self._least)

    def _most_at_once(self, rank: int, count: int, speeds: tuple[float, ...]) -> int | None:
        """Return the number of samples that this rank may take in one part; None if all."""
        if self.accumulate == 1:
            return self._most
        sizes = split(count, speeds, self._least)
        mine = sizes[rank] or next(size for size in sizes if size)
        return min(self._most or count, max(-(-mine // self.accumulate), 2 * self._least - 1))

    @abc.abstractmethod
    def batch_sizes(self) -> tuple[int, ...]:
        """Return the sizes of the batches of this epoch that are known to follow."""

    @property
    def takes_parts(self) -> bool:
        """True if a rank may take its share in several parts."""
        return self._most is not None or self.shards is not None or self.accumulate > 1

    def check_no_rank_idles(self) -> None:
        """Raise RuntimeError if a known batch has no samples for some rank."""
        for size in self.batch_sizes():
            idle = sum(not each for each in split(size, self.speeds, self._least))
            if idle:
                raise RuntimeError(
                    f"a batch of {size} samples leaves {idle} of {len(self.speeds)} processes "
                    "without any. They repeat samples with weight 0, but SyncBatchNorm would count "
                    "them. Use drop_last=True, or larger batches, or fewer workers"
                )

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

    def count_part(self) -> None:  # noqa: B027 - nothing to count
        """Count a part of the script. Raise RuntimeError if its samples are not those in turn."""

    @contextlib.contextmanager
    def part(self, model: torch.nn.Module | None = None) -> Iterator[MicroBatch]:
        """Wrap forward and backward of one part; the end of the last part commits the batch.

        If `model` is a DistributedDataParallel, only the last part exchanges gradients. Raise
        RuntimeError if the group breaks, or if a part's samples are not those in turn.
        """
        share = self.share()
        is_last = self._parts_done == len(share.parts) - 1
        if self._parts_done == 0:
            self._weights = LossWeights(() if model is None else model.parameters())
        weight = share.weights[self._parts_done]
        self._weights.begin_part(weight, is_last=is_last)
        exchange_gradients(model, now=is_last)
        yield MicroBatch(weight, self._weights, is_last=is_last)
        self.count_part()
        self._parts_done += 1
        if is_last:
            self._parts_done = 0
            self.commit()


def exchange_gradients(model: torch.nn.Module | None, *, now: bool) -> None:
    """Set whether the next backward of a DistributedDataParallel exchanges gradients."""
    model = getattr(model, "_orig_mod", model)  # of torch.compile
    if isinstance(model, DistributedDataParallel):
        model.require_backward_grad_sync = now
