"""ElasticBatchSampler of one size at any world size: a batch sampler for torch's DataLoader, with a position.

    batches = ElasticBatchSampler(dataset, 60)
    loader = DataLoader(dataset, batch_sampler=batches, num_workers=2)

Each sample of an epoch is trained on once, whatever the ranks do in between: the position moves
when a batch has been trained on, not when it has been fetched. `size` is that of all ranks
together. Nothing is padded: the last batch of an epoch is a short one, or left out (`drop_last`).
Knows nothing of snapshots and agents.
"""

from __future__ import annotations

from collections.abc import Sized
from typing import TYPE_CHECKING, Any

from torch.utils.data import Sampler

from ddpjob_trainer.data.partition import BatchShare, epoch_order
from ddpjob_trainer.data.position import DataPosition, ranks

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch


class ElasticBatchSampler(DataPosition, Sampler[list[int]]):
    """Iterating gives this rank's samples, part by part, to the end of the epoch."""

    def __init__(
        self, data: Sized | int, size: int, *, seed: int = 0, shuffle: bool = True,
        drop_last: bool = False, max_samples_per_rank: int | None = None, speed: float | None = None,
        per_process: bool = False,
    ) -> None:  # fmt: skip
        """`data`: what is indexed, or its length. `max_samples_per_rank`: samples that a rank can hold at a time.

        `speed`: of this rank, compared with the others, which all give one. `per_process`: a batch
        has `size` samples for each process that there is; see `scale_lr`.
        """
        self.samples = data if isinstance(data, int) else len(data)
        self._size, self._per_process = size, per_process
        self._shuffle, self._drop_last = shuffle, drop_last
        self._taken = 0  # samples of the batch at hand
        if self.samples < 1:
            raise ValueError("the data set is empty")
        if size < 1:
            raise ValueError(f"size is {size}: a whole number from 1 on is needed")
        super().__init__(max_samples_per_rank, speed)
        self.seed = seed
        self._check()
        self._order: tuple[int, torch.Tensor] | None = None

    # --- where training is ------------------------------------------------------------------------

    @property
    def batch_size(self) -> int:
        """Samples of a batch, of all ranks together."""
        return self._size * ranks()[1] if self._per_process else self._size

    @property
    def follows_ranks(self) -> bool:
        """Whether the size of a batch depends on how many ranks there are."""
        return self._per_process

    @property
    def epoch_end(self) -> int:
        """The position at which this epoch ends."""
        return self._end(self.position)

    def _end(self, position: int) -> int:
        return self.samples - (
            (self.samples - position) % self.batch_size if self._drop_last else 0
        )

    def sync_speeds(self) -> None:
        """Every rank tells how fast it is; batches may be of another size from now on."""
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
        """What this rank does of the batch at hand."""
        self._taken = self._count(self.position)
        return self._share_of(self.position, self._taken)

    def commit(self) -> None:
        """The batch at hand has been trained on, by all ranks."""
        self._go_to(self.epoch, self.position + (self._taken or self._count(self.position)))
        self._taken = 0

    def has_more(self, epochs: int) -> bool:
        """Whether there is another batch before the end of so many epochs."""
        return self.epoch < epochs

    def remaining(self, epochs: int) -> int:
        """ElasticBatchSampler from here to the end of so many epochs."""
        extra = self.samples % self.batch_size
        whole = self.samples // self.batch_size + (extra > 0 and not self._drop_last)
        here = -(-(self.epoch_end - self.position) // self.batch_size)
        return max(0, (epochs - self.epoch - 1) * whole + here)

    def state_dict(self) -> dict[str, Any]:
        """The same on every rank."""
        return {
            "samples": self.samples, "seed": self.seed, "shuffle": self._shuffle,
            "epoch": self.epoch, "position": self.position,
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of state_dict(); `size` may be another. Raises ValueError for other samples."""
        mine = self.state_dict()
        wrong = [
            f"{name} was {state.get(name)}, is {mine[name]}"
            for name in ("samples", "seed", "shuffle")
            if state.get(name) != mine[name]
        ]
        if wrong:
            raise ValueError(f"the data is not the same: {', '.join(wrong)}")
        self._go_to(state["epoch"], state["position"])

    def _go_to(self, epoch: int, position: int) -> None:
        has_more = position < self._end(position)
        self.epoch, self.position = (epoch, position) if has_more else (epoch + 1, 0)

    # --- for the loader ---------------------------------------------------------------------------

    def __iter__(self) -> Iterator[list[int]]:
        epoch, position, end = self.epoch, self.position, self.epoch_end
        while position < end:
            share = self._share(position)
            first = share.first
            for part in share.parts:
                yield self._indices(epoch, first, part)
                first += part
            position += self.batch_size

    def __len__(self) -> int:
        """What iterating gives now: parts of this rank, from here to the end of the epoch."""
        full, last = divmod(self.epoch_end - self.position, self.batch_size)
        count = full * len(self._share(0).parts) if full else 0
        if last:
            count += len(self._share(self.epoch_end - last).parts)
        return count

    def _share(self, position: int) -> BatchShare:
        return self._share_of(position, self._count(position))

    def _count(self, position: int) -> int:
        return min(self.batch_size, self._end(position) - position)

    def _indices(self, epoch: int, first: int, count: int) -> list[int]:
        if not self._shuffle:
            return list(range(first, first + count))
        if self._order is None or self._order[0] != epoch:
            self._order = epoch, epoch_order(self.samples, self.seed, epoch)
        found: list[int] = self._order[1][first : first + count].tolist()
        return found
