"""Batches of one size at any world size: a batch sampler for torch's DataLoader.

    batches = ElasticBatchSampler(dataset, 60)
    loader = DataLoader(dataset, batch_sampler=batches, num_workers=2)

The job trains once on each sample of an epoch, even if the ranks change during the epoch. The
sampler's position moves after the ranks have trained on a batch, not when a loader fetches the
batch. `size` counts the samples of all ranks together. Nothing is padded: the last batch of an
epoch is shorter, or is dropped (`drop_last`). This module does not depend on snapshots or agents.
"""

from __future__ import annotations

from collections.abc import Sized
from typing import TYPE_CHECKING, Any

from torch.utils.data import Sampler

from ddpjob_trainer import collectives
from ddpjob_trainer.data.orders import EpochOrder
from ddpjob_trainer.data.partition import BatchShare
from ddpjob_trainer.data.position import DataPosition

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ddpjob_trainer.data.orders import Order


class ElasticBatchSampler(DataPosition, Sampler[list[int]]):
    """A batch sampler that yields this rank's samples, part by part, to the end of the epoch."""

    def __init__(
        self, data: Sized | int, size: int, *, seed: int = 0, shuffle: bool = True,
        drop_last: bool = False, max_samples_per_rank: int | None = None, speed: float | None = None,
        per_process: bool = False, min_samples_per_rank: int = 1, order: Order | None = None,
    ) -> None:  # fmt: skip
        """Take the data set or its length as `data`, and `size` samples per batch.

        `seed` and `shuffle` make the order of each epoch. With `drop_last`, a last batch with fewer
        samples is left out. `max_samples_per_rank` is the number of samples that a rank can hold at a time. With
        `min_samples_per_rank`, a rank trains on that many at a time, or has no share. `speed` is
        the speed of this rank in any unit; if one rank has a speed, all ranks need one. With
        `per_process`, a batch has `size` samples for each process; see `scale_lr`. `order(epoch)`
        returns the indices of an epoch in place of `seed` and `shuffle`: any number of them, the
        same ones on all ranks. Raise ValueError if a value is invalid.
        """
        length = data if isinstance(data, int) else len(data)
        if length < 1:
            raise ValueError("the data set is empty")
        self._order = EpochOrder(length, seed, order, shuffle=shuffle)
        self.samples = self._order.samples  # of an epoch
        self._size, self._per_process = size, per_process
        self._shuffle, self._drop_last = shuffle, drop_last
        self._taken = 0  # samples of the current batch
        self._ahead = 0  # parts that a loader has taken, and that are not trained on
        if size < 1:
            raise ValueError(f"size is {size}: a whole number from 1 on is needed")
        super().__init__(max_samples_per_rank, speed, min_samples_per_rank)
        self.seed = seed
        self._check()
        last = self.samples % size or size
        if last < min_samples_per_rank and not (per_process or (drop_last and last < size)):
            raise ValueError(
                f"the last batch of an epoch has {last} samples, fewer than min_samples_per_rank="
                f"{min_samples_per_rank}: use drop_last=True, or another size"
            )

    # --- position
    # -----------------------------------------------------------------------------------

    @property
    def batch_size(self) -> int:
        """Samples of a batch, of all ranks together."""
        size = self._size * self.accumulate
        return size * collectives.ranks()[1] if self._per_process else size

    @property
    def follows_ranks(self) -> bool:
        """True if the size of a batch depends on the number of ranks."""
        return self._per_process

    @property
    def drop_last(self) -> bool:
        """Raise TypeError: only what would share the batches among ranks once more asks for it."""
        raise TypeError(
            "ElasticBatchSampler gives each rank its share already; shared once more, most samples "
            "would never be trained on. Leave the DataLoader out of accelerator.prepare() or "
            "fabric.setup_dataloaders(), and move its batches to the device yourself"
        )

    @property
    def epoch_end(self) -> int:
        """The position at which this epoch ends."""
        return self._end(self.position)

    def _end(self, position: int) -> int:
        return self.samples - (
            (self.samples - position) % self.batch_size if self._drop_last else 0
        )

    def sync_speeds(self) -> None:
        """Exchange the speeds of all ranks; the size of the following batches may change."""
        self._order.ranks_may_differ()
        super().sync_speeds()
        self._check()
        self._go_to(self.epoch, self.position)

    def _check(self) -> None:
        if self._drop_last and self.batch_size > self.samples:
            raise ValueError(
                f"a batch of {self.batch_size} is more than the {self.samples} samples that there are, "
                "and drop_last leaves out what does not fill one: nothing would be left"
            )

    def share(self) -> BatchShare:
        """Return this rank's share of the current batch.

        Raise ValueError if the ranks have different orders, RuntimeError if the group breaks.
        """
        self._order.check_ranks(self.epoch)
        self._taken = self._count(self.position)
        return self._share_of(self.position, self._taken)

    def batch_sizes(self) -> tuple[int, ...]:
        """Return the sizes of the batches from the position to the end of the epoch."""
        left = self.epoch_end - self.position
        return tuple(each for each in (min(left, self.batch_size), left % self.batch_size) if each)

    def commit(self) -> None:
        """Move the position past the current batch; all ranks have trained on it."""
        self._go_to(self.epoch, self.position + (self._taken or self._count(self.position)))
        self._taken = 0

    def count_part(self) -> None:
        """Count a part of the script. Raise RuntimeError if no loader has taken its samples."""
        if self._ahead < 1:
            raise RuntimeError(
                "a part was trained on whose samples no loader took from this ElasticBatchSampler "
                "in this process: iterate over its own DataLoader on every rank, as `for ... in "
                "loader: with batches.part(model):`"
            )
        self._ahead -= 1

    def has_more(self, epochs: int) -> bool:
        """Return whether a batch remains before the end of epoch number `epochs`."""
        return self.epoch < epochs

    def remaining(self, epochs: int) -> int:
        """Return the number of batches from the position to the end of epoch number `epochs`."""
        extra = self.samples % self.batch_size
        whole = self.samples // self.batch_size + (extra > 0 and not self._drop_last)
        here = -(-(self.epoch_end - self.position) // self.batch_size)
        return max(0, (epochs - self.epoch - 1) * whole + here)

    def state_dict(self) -> dict[str, Any]:
        """Return the position; all ranks return equal values."""
        return {
            "samples": self.samples, "seed": self.seed, "shuffle": self._shuffle,
            "epoch": self.epoch, "position": self.position, "order": self._order.digest(self.epoch),
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore `state`, the result of state_dict(); `size` may differ.

        Raise ValueError if the samples, the seed, `shuffle` or the order differ.
        """
        mine = {**self.state_dict(), "order": self._order.digest(state["epoch"])}
        wrong = [
            f"{name} was {state.get(name)}, is {mine[name]}"
            for name in ("samples", "seed", "shuffle", "order")
            if state.get(name) != mine[name]
        ]
        if wrong:
            raise ValueError(f"the data is not the same: {', '.join(wrong)}")
        self._go_to(state["epoch"], state["position"])

    def _go_to(self, epoch: int, position: int) -> None:
        has_more = position < self._end(position)
        self.epoch, self.position = (epoch, position) if has_more else (epoch + 1, 0)

    # --- iteration by the loader
    # --------------------------------------------------------------------

    def __iter__(self) -> Iterator[list[int]]:
        epoch, position, end = self.epoch, self.position, self.epoch_end
        self._ahead = 0
        while position < end:
            share = self._share(position)
            first = share.first
            for part in share.parts:
                self._ahead += 1
                yield self._order.indices(epoch, first, part)
                first += part
            position += self.batch_size

    def __len__(self) -> int:
        """Return the number of this rank's parts from the position to the end of the epoch."""
        full, last = divmod(self.epoch_end - self.position, self.batch_size)
        count = full * len(self._share(0).parts) if full else 0
        if last:
            count += len(self._share(self.epoch_end - last).parts)
        return count

    def _share(self, position: int) -> BatchShare:
        return self._share_of(position, self._count(position))

    def _count(self, position: int) -> int:
        return min(self.batch_size, self._end(position) - position)
