"""Feeds the steps of a `Loop` from a DataLoader over `ElasticBatchSampler`, or from a `Stream`.

What has been fetched ahead is of no account: a batch counts when its step does, and after a change
each process takes what is its own by then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ddpjob_trainer.data import deterministic
from ddpjob_trainer.data.batch_sampler import ElasticBatchSampler
from ddpjob_trainer.data.partition import BatchShare, shards_of
from ddpjob_trainer.data.position import DataPosition, exchange_gradients, ranks
from ddpjob_trainer.data.stream import Stream
from ddpjob_trainer.data.throughput import ThroughputMeter
from ddpjob_trainer.tensors import rng_state

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.utils.data import DataLoader

    from ddpjob_trainer.elastic.ddp_model import ElasticModel


class DataFeed:
    """What one process takes, step by step."""

    def __init__(
        self,
        loader: DataLoader[Any] | Stream,
        model: ElasticModel,
        *,
        shards: int | None = None,
        balance: bool = False,
    ) -> None:
        """`shards`: deterministic mode, see `data.deterministic`. `balance`: shares follow the measured pace."""
        source = loader if isinstance(loader, Stream) else loader.batch_sampler
        if not isinstance(source, (ElasticBatchSampler, Stream)):
            raise TypeError(
                "the loader does not know where training is: make it as "
                "DataLoader(dataset, batch_sampler=ElasticBatchSampler(dataset, 64), ...), or give a Stream"
            )
        self.source: DataPosition = source
        self._loader = loader
        self._model = model
        self._iterator: Iterator[Any] | None = None
        self._epoch = 0  # that it is in
        self._begun = self._is_taken = False  # the batch at hand
        self._weight = 0.0  # of the part in hand
        if shards is not None and source.follows_ranks:
            raise ValueError(
                "deterministic needs batches of one size: leave away per_process, whose batches "
                "have another one for each number of processes"
            )
        self.source.shards = shards
        self._pace = ThroughputMeter(model.module.parameters()) if balance else None
        self._has_measured = False
        self._exact = (
            None
            if shards is None
            else deterministic.DeterministicReducer(model.module.parameters())
        )

    def restart(self) -> None:
        """Go on from where training is, with the rank and world size of now."""
        self._iterator = None
        self._begun = self._is_taken = self._has_measured = False
        if self._pace is not None:
            self._pace.restart()

    def sync_speeds(self) -> None:
        """All ranks of a new group tell how fast they are. Raises RuntimeError if it breaks."""
        self.source.sync_speeds()

    def parts(self) -> Iterator[Any]:
        """This rank's share of the batch at hand."""
        if self._begun:
            raise RuntimeError("the parts of a step can be taken once")
        if self._has_measured:
            self._balance()
        self._begun = True
        share = self.source.share()
        yield from self._parts(share) if self._exact is None else self._shards(share, self._exact)
        self._is_taken = True

    def _parts(self, share: BatchShare) -> Iterator[Any]:
        for number, (weight, samples) in enumerate(zip(share.weights, share.parts, strict=True), 1):
            self._weight = weight
            exchange_gradients(self._model.wrapped, now=number == len(share.weights))
            part = self._next()
            if self._pace is not None:
                self._pace.begin(samples)
            yield part

    def _shards(
        self, share: BatchShare, gradients: deterministic.DeterministicReducer
    ) -> Iterator[Any]:
        source, (rank, _) = self.source, ranks()
        assert source.shards is not None
        ranges = shards_of(source.speeds, source.shards)
        buffers = [*self._model.module.buffers()]
        versions = [each._version for each in buffers]  # noqa: SLF001 - torch's own way to find out
        gradients.begin(ranges[rank].start)
        for shard, weight in zip(share.shards, share.weights, strict=True):
            self._weight = weight
            part = self._next()  # a loader draws random numbers when it begins
            rng_state.draw(source.seed, source.epoch, source.position, shard)
            yield part
            gradients.add_shard(shard)
        if versions != [each._version for each in buffers]:  # noqa: SLF001
            raise RuntimeError(
                "in deterministic mode the forward pass may not change buffers, such as "
                "BatchNorm's running statistics: what they become depends on which shards a "
                "process has. Use LayerNorm or GroupNorm, or eval() on these modules."
            )
        gradients.finish(ranges, share.filled)

    def backward(self, loss: torch.Tensor) -> None:
        """Of the mean loss of the part in hand, by its weight in the batch."""
        torch.autograd.backward(loss if self._weight == 1 else loss * self._weight)

    def check(self) -> None:
        """Raises RuntimeError unless all of this rank's share has been taken."""
        if not self._is_taken:
            raise RuntimeError(
                "a step has to take all of its parts: `for inputs, targets in step.parts():`"
            )

    def commit(self) -> None:
        """The batch has been trained on."""
        self._begun = self._is_taken = False
        self.source.commit()
        if self._pace is not None:
            self._has_measured = self._pace.end()

    def _balance(self) -> None:
        """All ranks have measured, over the same steps: share out by what they found."""
        assert self._pace is not None
        self._has_measured = False
        self.source.speed = self._pace.speed
        self.source.sync_speeds()
        self._iterator = None  # what was fetched ahead is not this rank's any more

    def _next(self) -> Any:
        if self._iterator is None or self._epoch != self.source.epoch:
            self._iterator, self._epoch = iter(self._loader), self.source.epoch
        return next(self._iterator)
