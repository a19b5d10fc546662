"""The samples of each `Loop` step, from a DataLoader with an `ElasticBatchSampler` or a `Stream`.

Batches fetched ahead do not count: a batch counts when its step counts. After a change, each
process fetches its new share of the current batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ddpjob_trainer import collectives
from ddpjob_trainer.data import deterministic
from ddpjob_trainer.data.batch_sampler import ElasticBatchSampler
from ddpjob_trainer.data.loss_weights import LossWeights
from ddpjob_trainer.data.partition import BatchShare, shards_of
from ddpjob_trainer.data.position import DataPosition
from ddpjob_trainer.data.stream import Stream
from ddpjob_trainer.data.throughput import ThroughputMeter
from ddpjob_trainer.tensors import rng_state

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.utils.data import DataLoader

    from ddpjob_trainer.data.loss_weights import Count
    from ddpjob_trainer.elastic.ddp_model import ElasticModel

ONE_BACKWARD = (
    "It is the second backward of these samples: for two losses of one call of `loop.model(...)`, "
    "add the losses up and call `step.backward` once."
)


class DataFeed:
    """The samples of one process, step by step."""

    def __init__(
        self,
        loader: DataLoader[Any] | Stream,
        model: ElasticModel,
        *,
        shards: int | None = None,
        balance: bool = False,
        accumulate: int = 1,
    ) -> None:
        """Feed the samples of `loader` to `model`.

        Raise TypeError or ValueError if they do not fit. `shards` switches on deterministic mode,
        see `data.deterministic`. With `balance`, the shares follow the measured speeds.
        `accumulate` batches of the loader are one batch, which each rank takes in as many parts.
        """
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
        self._epoch = 0  # epoch of the iterator
        self._begun = self._is_taken = False  # of the current batch
        self._weighed = 0  # gradients of the current part with its weight
        self._weights = LossWeights(model.module.parameters())
        if shards is not None and source.follows_ranks:
            raise ValueError(
                "deterministic needs batches of one size: leave out per_process, whose batches "
                "have another one for each number of processes"
            )
        self.source.shards, self.source.accumulate = shards, accumulate
        self._has_sync_norm = any(
            isinstance(each, torch.nn.SyncBatchNorm) for each in model.module.modules()
        )
        if self._has_sync_norm and source.takes_parts:
            raise ValueError(
                "SyncBatchNorm waits for all processes in each forward pass, and they would take "
                "different numbers of parts: leave out max_samples_per_rank and deterministic"
            )
        if model.is_static_graph and source.takes_parts:
            raise ValueError(
                "with static_graph=True every backward pass must exchange gradients, and only the "
                "last part of a share does: leave out static_graph or max_samples_per_rank"
            )
        self._pace = ThroughputMeter(model.module.parameters()) if balance else None
        self._has_measured = False
        self._exact = (
            None
            if shards is None
            else deterministic.DeterministicReducer(model.module.parameters())
        )

    def restart(self) -> None:
        """Continue from the position with the current rank and world size."""
        self._iterator = None
        self._begun = self._is_taken = self._has_measured = False
        if self._pace is not None:
            self._pace.restart()

    def sync_speeds(self) -> None:
        """Exchange the speeds of a new group's ranks. Raise RuntimeError if the group breaks."""
        self.source.sync_speeds()

    def parts(self) -> Iterator[Any]:
        """Yield this rank's parts of the current batch."""
        if self._begun:
            raise RuntimeError("the parts of a step can be taken once")
        if self._has_measured:
            self._balance()
        self._begun = True
        self._weights.begin()
        if self._has_sync_norm:
            self.source.check_no_rank_idles()
        share = self.source.share()
        yield from self._parts(share) if self._exact is None else self._shards(share, self._exact)
        self._is_taken = True

    def _parts(self, share: BatchShare) -> Iterator[Any]:
        for number, (weight, samples) in enumerate(zip(share.weights, share.parts, strict=True), 1):
            is_last = number == len(share.weights)
            self._weights.begin_part(weight, is_last=is_last)
            self._model.sync_gradients(now=is_last)
            part = self._next()
            if self._pace is not None:
                self._pace.begin(samples)
            yield from self._weighing(part)

    def _shards(
        self, share: BatchShare, gradients: deterministic.DeterministicReducer
    ) -> Iterator[Any]:
        source, (rank, _) = self.source, collectives.ranks()
        assert source.shards is not None
        ranges = shards_of(source.speeds, source.shards)
        buffers = [*self._model.module.buffers()]
        versions = [each._version for each in buffers]  # noqa: SLF001 - torch's own change counter
        gradients.begin(ranges[rank].start)
        for shard, weight in zip(share.shards, share.weights, strict=True):
            self._weights.begin_part(weight, is_last=False, is_sum=True)
            part = self._next()  # a loader draws random numbers when its iteration begins
            rng_state.draw(source.seed, source.epoch, source.position, shard)
            yield from self._weighing(part)
            gradients.add_shard(shard)
        if versions != [each._version for each in buffers]:  # noqa: SLF001
            raise RuntimeError(
                "in deterministic mode the forward pass may not change buffers, such as "
                "BatchNorm's running statistics: what they become depends on which shards a "
                "process has. Use LayerNorm or GroupNorm, or eval() on these modules."
            )
        gradients.finish(ranges, share.filled)
        self._weights.end_sum()
        self._model.begin_step()

    def _weighing(self, part: Any) -> Iterator[Any]:
        """Yield the current part. Raise RuntimeError if it makes gradients with no weight."""
        before, self._weighed = self._model.gradients, 0
        yield part
        if self._model.gradients - before > self._weighed:
            raise RuntimeError(
                "`loss.backward()` weighs the shares of all processes alike, and they have "
                "different numbers of samples: call `step.backward(loss)`. For a loss that is a mean "
                "over tokens, call `step.backward(loss, count=tokens)`"
            )

    def backward(self, loss: torch.Tensor, count: Count | None = None) -> None:
        """Run backward on the current part's mean loss, times the part's weight in the batch.

        `count` is the number that the loss is a mean over, if that is not the number of samples.
        """
        before = self._model.gradients
        try:
            self._weights.backward(loss, count)
        except RuntimeError as error:
            if self._weighed:
                error.add_note(ONE_BACKWARD)
            raise
        self._weighed += self._model.gradients - before

    def check(self) -> None:
        """Raise RuntimeError unless the script has taken all parts of this rank's share."""
        if not self._is_taken:
            raise RuntimeError(
                "a step has to take all of its parts: `for inputs, targets in step.parts():`"
            )
        self._weights.check()

    def commit(self) -> None:
        """Commit the current batch: all ranks have trained on it."""
        self._begun = self._is_taken = False
        self.source.commit()
        if self._pace is not None:
            self._has_measured = self._pace.end()

    def _balance(self) -> None:
        """Share by the speeds that all ranks have measured over the same steps."""
        assert self._pace is not None
        self._has_measured = False
        self.source.speed = self._pace.speed
        self.source.sync_speeds()
        self._iterator = None  # the batches fetched ahead hold the old share

    def _next(self) -> Any:
        if self._iterator is None or self._epoch != self.source.epoch:
            self._iterator, self._epoch = iter(self._loader), self.source.epoch
        return next(self._iterator)
