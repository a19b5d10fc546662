"""Batches of data without an index: each rank reads all batches and takes its share of each.

    stream = Stream(DataLoader(iterable_dataset, batch_size=60, collate_fn=list, num_workers=1))

The loader must yield equal batches in all processes, so its data set must not shard by rank. The
loader's `batch_size` counts the samples of all ranks together. A change of the ranks loses no
samples: a rank that holds a batch takes another share of that batch. A new rank reads up to the
position of the others. If the loader has a state, as torchdata's StatefulDataLoader, the new rank
loads that state instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch.utils.data import DistributedSampler, RandomSampler, default_collate

from ddpjob_trainer.data.partition import BatchShare
from ddpjob_trainer.data.position import DataPosition

Batch = list[Any]  # samples


class Stream(DataPosition):
    """A data position that yields this rank's parts, collated, to the end of the epoch."""

    def __init__(
        self, loader: Iterable[Batch], *, collate_fn: Callable[[Batch], Any] = default_collate,
        max_samples_per_rank: int | None = None, speed: float | None = None,
        min_samples_per_rank: int = 1,
    ) -> None:  # fmt: skip
        """Take a `loader` that yields lists of samples.

        `collate_fn` makes a part of a list of samples, as that of DataLoader does.
        `max_samples_per_rank` is the number of samples that a rank can hold at a time. With
        `min_samples_per_rank`, a rank trains on that many at a time, or has no share. `speed` is
        the speed of this rank in any unit; if one rank has a speed, all ranks need one. Raise
        ValueError if the loader yields other batches on other ranks.
        """
        _check_equal_on_all_ranks(loader)
        super().__init__(max_samples_per_rank, speed, min_samples_per_rank)
        self._loader = loader
        self._collate = collate_fn
        self._iterator: Iterator[Batch] | None = None
        self._batch: Batch | None = None  # the current batch: read, not yet trained on
        self._skip = 0  # samples of the epoch to skip
        self._loader_state: Any = (
            None  # the loader's state, to be loaded before the loader is opened
        )
        self._before: Any = None  # the loader's state from before the current batch

    def share(self) -> BatchShare:
        """Return this rank's share of the current batch.

        Raise RuntimeError at the end of the epoch.
        """
        if not self._read():
            raise RuntimeError("the epoch has ended")
        assert self._batch is not None
        return self._share_of(0, len(self._batch))

    def batch_sizes(self) -> tuple[int, ...]:
        """Return the size of the current batch: others are unknown."""
        return (len(self._batch),) if self._read() and self._batch else ()

    def commit(self) -> None:
        """Move the position past the current batch; all ranks have trained on it."""
        assert self._batch is not None
        self.position += len(self._batch)
        self._batch = None

    def has_more(self, epochs: int) -> bool:
        """Return whether a batch remains before the end of epoch number `epochs`; read it."""
        while self.epoch < epochs:
            if self._read():
                return True
            self._end_epoch()
        return False

    def remaining(self, epochs: int) -> None:
        """Return None: the length of the data is unknown."""

    def __iter__(self) -> Iterator[Any]:
        epoch = self.epoch
        while self.epoch == epoch and self._read():
            share, batch = self.share(), self._batch
            assert batch is not None
            first = share.first
            for count in share.parts:
                yield self._collate(batch[first : first + count])
                first += count
            if self._batch is batch:
                raise RuntimeError("a batch was not marked as trained: use `with stream.part():`")
        if self.epoch == epoch:
            self._end_epoch()

    def state_dict(self) -> dict[str, Any]:
        """Return the position, with the loader's own state if it has one."""
        state = {"epoch": self.epoch, "position": self.position, "loader": None}
        if hasattr(self._loader, "state_dict"):
            state["loader"] = self._loader_state or (
                self._loader.state_dict() if self._batch is None else self._before
            )
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore `state`, the result of state_dict(). Keep an iterator that is not past the position."""
        ahead = state["position"] - self.position
        if self._iterator is None or state["epoch"] != self.epoch or ahead < 0:
            self._close()
            self._skip, self._loader_state = state["position"], state["loader"]
        elif ahead > 0:
            self._skip_samples(ahead)
        self.epoch, self.position = state["epoch"], state["position"]

    # --- reading ----------------------------------------------------------------------------------

    def _read(self) -> bool:
        """Return whether there is a current batch; read one if the epoch has another."""
        if self._iterator is None:
            self._open()
        if self._batch is None:
            if hasattr(self._loader, "state_dict"):
                self._before = self._loader.state_dict()
            self._batch = self._next()
            for _ in range(self.accumulate - 1):
                more = None if self._batch is None else self._next()
                if self._batch is None or more is None:
                    break
                self._batch = [*self._batch, *more]
        return self._batch is not None

    def _open(self) -> None:
        set_epoch = getattr(getattr(self._loader, "dataset", None), "set_epoch", None)
        if set_epoch is not None:
            set_epoch(self.epoch)
        if self._loader_state is not None:
            self._loader.load_state_dict(self._loader_state)  # type: ignore[attr-defined]
            self._skip, self._loader_state = 0, None
        self._iterator = iter(self._loader)
        skip, self._skip = self._skip, 0
        self._skip_samples(skip)

    def _skip_samples(self, count: int) -> None:
        while count > 0:
            batch = self._next() if self._batch is None else self._batch
            if batch is None:
                raise ValueError(
                    f"the data is not the same: it ends {count} samples before where training was"
                )
            self._batch = batch[count:] or None
            count -= len(batch)

    def _next(self) -> Batch | None:
        assert self._iterator is not None
        batch = next(self._iterator, None)
        if batch is not None and not isinstance(batch, list):
            raise TypeError(
                f"the loader gives a {type(batch).__name__} where a list of samples is needed: "
                "DataLoader(..., collate_fn=list), and collate_fn of Stream makes tensors of them"
            )
        return batch

    def _end_epoch(self) -> None:
        if self.position == 0:
            raise ValueError("the loader gave nothing in a whole epoch")
        self._close()
        self.epoch, self.position = self.epoch + 1, 0

    def _close(self) -> None:
        self._iterator = self._batch = self._loader_state = self._before = None
        self._skip = 0


def _check_equal_on_all_ranks(loader: Any) -> None:
    """Raise ValueError if the loader yields only the samples of its rank, or shuffles by itself."""
    sampler, dataset = getattr(loader, "sampler", None), getattr(loader, "dataset", None)
    part = getattr(dataset, "_distributed", None)  # of Hugging Face's split_dataset_by_node()
    if isinstance(sampler, DistributedSampler) or getattr(part, "world_size", 1) > 1:
        raise ValueError(
            "the loader yields one rank's samples, and Stream divides them among the ranks once more: "
            "most samples would never be trained on, and the position in them means nothing to another "
            "rank. Give a loader of the whole data: without DistributedSampler and without "
            "split_dataset_by_node()"
        )
    if isinstance(sampler, RandomSampler) and sampler.generator is None:
        raise ValueError(
            "the loader shuffles by the random numbers of its own process, so the ranks would read "
            "different batches. Use ElasticBatchSampler, which shuffles equally on all ranks, or give the "
            "loader a generator with the same seed on all ranks"
        )
