"""The order of the samples of each epoch: a permutation of the data set, or the script's own.

An order of the script is a function of the epoch: weighted, with repetitions, sorted by length. It
must not depend on the rank. `weighted` and `by_length` make two common ones.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import torch

from ddpjob_trainer import collectives
from ddpjob_trainer.data.partition import epoch_generator, epoch_order

if TYPE_CHECKING:
    from collections.abc import Callable

    Order = Callable[[int], Any]  # epoch -> int sequence or tensor: indices of the data set

_CHUNK = 100  # batches that by_length() sorts together


class EpochOrder:
    """The samples of each epoch in training order."""

    def __init__(self, length: int, seed: int, order: Order | None, *, shuffle: bool) -> None:
        """Order a data set of `length` samples. Raise ValueError if `order` does not fit."""
        self._length, self._seed, self._shuffle, self._order = length, seed, shuffle, order
        self.samples = length  # of an epoch
        self._current: tuple[int, torch.Tensor] | None = None  # an epoch and its order
        self._digest: tuple[int, str] | None = None
        self._compared: int | None = None  # the epoch whose order all ranks have
        if order is not None:
            self.samples = len(self._own(order, 0))

    def indices(self, epoch: int, first: int, count: int) -> list[int]:
        """Return `count` samples of the epoch, from the position `first` on."""
        if self._order is None and not self._shuffle:
            return list(range(first, first + count))
        found: list[int] = self._of(epoch)[first : first + count].tolist()
        return found

    def digest(self, epoch: int) -> str | None:
        """Return a digest of the script's order in that epoch; None if it has none."""
        if self._order is None:
            return None
        if self._digest is None or self._digest[0] != epoch:
            data = self._of(epoch).contiguous().numpy().tobytes()
            self._digest = epoch, hashlib.sha256(data).hexdigest()
        return self._digest[1]

    def ranks_may_differ(self) -> None:
        """Compare the orders of all ranks again: there may be new ranks."""
        self._compared = None

    def check_ranks(self, epoch: int) -> None:
        """Compare the script's order of this epoch over all ranks, once.

        Raise ValueError on every rank if they differ, RuntimeError if the group breaks.
        """
        if self._order is None or self._compared == epoch:
            return
        digests = collectives.all_gather_objects(self.digest(epoch))
        other = next((rank for rank, each in enumerate(digests) if each != digests[0]), None)
        if other is not None:
            raise ValueError(
                f"order({epoch}) of rank {other} is not that of rank 0: samples would be left out. "
                "An order must follow from the epoch alone: give its random numbers a fixed seed"
            )
        self._compared = epoch

    def _of(self, epoch: int) -> torch.Tensor:
        if self._current is None or self._current[0] != epoch:
            if self._order is None:
                self._current = epoch, epoch_order(self._length, self._seed, epoch)
            else:
                self._current = epoch, self._own(self._order, epoch)
        return self._current[1]

    def _own(self, order: Order, epoch: int) -> torch.Tensor:
        found = torch.as_tensor(order(epoch), device="cpu").to(torch.int64)
        if found.dim() != 1 or not len(found):
            raise ValueError(
                f"order({epoch}) has the shape {[*found.shape]}: give one row of indices"
            )
        if int(found.min()) < 0 or int(found.max()) >= self._length:
            raise ValueError(
                f"order({epoch}) has indices from {int(found.min())} to {int(found.max())}, and the "
                f"data set has {self._length} samples"
            )
        if epoch and len(found) != self.samples:
            raise ValueError(
                f"order({epoch}) has {len(found)} samples, order(0) has {self.samples}: give every "
                "epoch the same number"
            )
        return found


def weighted(weights: Any, samples: int, *, seed: int = 0) -> Order:
    """Return an order of `samples` draws per epoch, with repetitions, in proportion to `weights`.

    `weights` has one number for each sample of the data set. `seed` and the epoch determine the draws.
    """
    chances = torch.as_tensor(weights, dtype=torch.float64, device="cpu")
    return lambda epoch: torch.multinomial(
        chances, samples, replacement=True, generator=epoch_generator(seed, epoch)
    )


def by_length(lengths: Any, size: int, *, seed: int = 0) -> Order:
    """Return an order whose batches of `size` samples have similar lengths, and vary by epoch.

    `lengths` has one number for each sample of the data set, in any unit. `seed` and the epoch
    determine the order.
    """
    known = torch.as_tensor(lengths, device="cpu")

    def order(epoch: int) -> torch.Tensor:
        chunks = epoch_order(len(known), seed, epoch).split(_CHUNK * size)
        ordered = torch.cat([each[known[each].argsort(stable=True)] for each in chunks])
        batches = ordered[: len(ordered) // size * size].view(-1, size)
        mixed = batches[epoch_order(len(batches), seed, epoch)]
        return torch.cat([mixed.flatten(), ordered[batches.numel() :]])

    return order
