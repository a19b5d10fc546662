"""Batches of one size at any world size: a batch sampler for torch's DataLoader, with a position.

    batches = Batches(dataset, 60)
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

from ddpjob_trainer.shares import Share, order_of
from ddpjob_trainer.source import Source

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch


class Batches(Source, Sampler[list[int]]):
    """Iterating gives this rank's samples, part by part, to the end of the epoch."""

    def __init__(
        self, data: Sized | int, size: int, *, seed: int = 0, shuffle: bool = True,
        drop_last: bool = False, most: int | None = None,
    ) -> None:  # fmt: skip
        """`data`: what is indexed, or its length. `most`: samples that a rank can hold at a time."""
        super().__init__()
        self.samples = data if isinstance(data, int) else len(data)
        self.size = size
        self.seed, self._shuffle, self._drop_last, self._most = seed, shuffle, drop_last, most
        if self.samples < 1:
            raise ValueError("the data set is empty")
        if size < 1 or (most is not None and most < 1):
            raise ValueError(f"size is {size}, most is {most}: whole numbers from 1 on are needed")
        if drop_last and size > self.samples:
            raise ValueError(
                f"a batch of {size} is more than the {self.samples} samples that there are, and "
                "drop_last leaves out what does not fill one: nothing would be left"
            )
        self._order: tuple[int, torch.Tensor] | None = None

    # --- where training is ------------------------------------------------------------------------

    @property
    def end(self) -> int:
        """Samples of an epoch that are trained on."""
        return self.samples - (self.samples % self.size if self._drop_last else 0)

    def share(self) -> Share:
        """What this rank does of the batch at hand."""
        return self._share(self.position)

    def commit(self) -> None:
        """The batch at hand has been trained on, by all ranks."""
        self._go_to(self.epoch, self.position + self.size)

    def has_more(self, epochs: int) -> bool:
        """Whether there is another batch before the end of so many epochs."""
        return self.epoch < epochs

    def remaining(self, epochs: int) -> int:
        """Batches from here to the end of so many epochs."""
        whole = -(-self.end // self.size)
        here = -(-(self.end - self.position) // self.size)
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
        self.epoch, self.position = (epoch, position) if position < self.end else (epoch + 1, 0)

    # --- for the loader ---------------------------------------------------------------------------

    def __iter__(self) -> Iterator[list[int]]:
        epoch, position = self.epoch, self.position
        while position < self.end:
            share = self._share(position)
            first = share.first
            for part in share.parts:
                yield self._indices(epoch, first, part)
                first += part
            position += self.size

    def __len__(self) -> int:
        """What iterating gives now: parts of this rank, from here to the end of the epoch."""
        full, last = divmod(self.end - self.position, self.size)
        count = full * len(self._share(0).parts) if full else 0
        if last:
            count += len(self._share(self.end - last).parts)
        return count

    def _share(self, position: int) -> Share:
        return self._share_of(position, min(self.size, self.end - position), self._most)

    def _indices(self, epoch: int, first: int, count: int) -> list[int]:
        if not self._shuffle:
            return list(range(first, first + count))
        if self._order is None or self._order[0] != epoch:
            self._order = epoch, order_of(self.samples, self.seed, epoch)
        found: list[int] = self._order[1][first : first + count].tolist()
        return found
