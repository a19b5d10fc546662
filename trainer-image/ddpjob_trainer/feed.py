"""Feeds the steps of a `Loop` from a DataLoader over `Batches`, or from a `Stream`.

What has been fetched ahead is of no account: a batch counts when its step does, and after a change
each process takes what is its own by then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ddpjob_trainer.batches import Batches
from ddpjob_trainer.source import Source, exchange_gradients
from ddpjob_trainer.stream import Stream

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.utils.data import DataLoader

    from ddpjob_trainer.model import ElasticModel


class Feed:
    """What one process takes, step by step."""

    def __init__(self, loader: DataLoader[Any] | Stream, model: ElasticModel) -> None:
        source = loader if isinstance(loader, Stream) else loader.batch_sampler
        if not isinstance(source, (Batches, Stream)):
            raise TypeError(
                "the loader does not know where training is: make it as "
                "DataLoader(dataset, batch_sampler=Batches(dataset, 64), ...), or give a Stream"
            )
        self.source: Source = source
        self._loader = loader
        self._model = model
        self._iterator: Iterator[Any] | None = None
        self._epoch = 0  # that it is in
        self._taken = 0  # parts of the batch at hand
        self._weight = 0.0  # of the last one

    def restart(self) -> None:
        """Go on from where training is, with the rank and world size of now."""
        self._iterator = None
        self._taken = 0

    def parts(self) -> Iterator[Any]:
        """This rank's share of the batch at hand."""
        if self._taken:
            raise RuntimeError("the parts of a step can be taken once")
        weights = self.source.share().weights
        for weight in weights:
            self._taken += 1
            self._weight = weight
            exchange_gradients(self._model.wrapped, now=self._taken == len(weights))
            yield self._next()

    def backward(self, loss: torch.Tensor) -> None:
        """Of the mean loss of the part in hand, by its weight in the batch."""
        torch.autograd.backward(loss * self._weight)

    def check(self) -> None:
        """Raises RuntimeError unless all of this rank's share has been taken."""
        if self._taken < len(self.source.share().parts):
            raise RuntimeError(
                "a step has to take all of its parts: `for inputs, targets in step.parts():`"
            )

    def commit(self) -> None:
        """The batch has been trained on."""
        self._taken = 0
        self.source.commit()

    def _next(self) -> Any:
        if self._iterator is None or self._epoch != self.source.epoch:
            self._iterator, self._epoch = iter(self._loader), self.source.epoch
        return next(self._iterator)
