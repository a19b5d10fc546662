"""`ElasticBatchSampler` in the hands of all ranks of a membership, in one process: plays histories.

The environment has the ranks, as before there is a group. Loaders fetch ahead.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

from ddpjob_trainer import ElasticBatchSampler, Snapshots
from support.histories import BATCH, EPOCHS, SAMPLES, Saved, Trained


class Numbers(Dataset[torch.Tensor]):
    """Sample i is i."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(index)


class Rank:
    """One process's batches, and what its loader gives."""

    def __init__(self, workers: int) -> None:
        self.batches = ElasticBatchSampler(SAMPLES, BATCH)
        self._workers = workers
        self._iterator: Iterator[torch.Tensor] | None = None
        self._epoch = 0  # that it is in

    def restart(self) -> None:
        """Forget the fetched batches: they do not count."""
        self._iterator = None

    def step(self) -> list[int]:
        """Return its share of the next batch; no samples if it only takes part."""
        if self._iterator is None or self._epoch != self.batches.epoch:
            loader = DataLoader(
                Numbers(SAMPLES), batch_sampler=self.batches, num_workers=self._workers
            )
            self._iterator, self._epoch = iter(loader), self.batches.epoch
        with self.batches.part() as part:
            samples: list[int] = next(self._iterator).tolist()
        return samples if part.weight else []


class Live:
    """Live mode: a survivor keeps its position, and a new rank gets it."""

    stays = True

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._ranks: list[Rank] = []

    def begin(self, world_size: int, saved: Saved | None) -> None:
        """Survivors have the lowest ranks."""
        survivors = self._ranks[:world_size]
        new = [Rank(self._workers) for _ in range(world_size - len(survivors))]
        for rank in new if survivors else ():
            rank.batches.load_state_dict(survivors[0].batches.state_dict())
        for rank in survivors:
            rank.restart()
        self._ranks = [*survivors, *new]

    def step(self) -> list[Trained]:
        """Return the samples that all ranks together train on next."""
        epoch = self._ranks[0].batches.epoch
        samples = [each for rank in self._each() for each in rank.step()]
        return [(epoch, sample) for sample in samples]

    def save(self, steps: int) -> Saved:
        """Keep the state in memory."""
        return Saved(steps, None)

    def is_done(self, steps: int) -> bool:
        """Return whether all epochs have been trained on."""
        return not self._ranks[0].batches.has_more(EPOCHS)

    def _each(self) -> Iterator[Rank]:
        for number, rank in enumerate(self._ranks):
            be(number, len(self._ranks))
            yield rank


class Saving(Live):
    """Level L1: all start again from a snapshot."""

    stays = False

    def __init__(self, workers: int, directory: Path) -> None:
        super().__init__(workers)
        self._directory = directory

    def begin(self, world_size: int, saved: Saved | None) -> None:
        """All processes are new."""
        self._ranks = [Rank(self._workers) for _ in range(world_size)]
        be(0, 1)  # without a group, each loads as if it were alone
        for rank in self._ranks:
            snapshots = Snapshots(self._directory)
            loaded = snapshots.load(model=torch.nn.Linear(1, 1), data=rank.batches)
            assert (loaded.step if loaded else 0) == (saved.steps if saved else 0)

    def save(self, steps: int) -> Saved:
        """Rank 0 does."""
        be(0, 1)
        if steps:
            snapshots = Snapshots(self._directory)
            snapshots.load(model=torch.nn.Linear(1, 1))
            snapshots.save(
                steps, model=torch.nn.Linear(1, 1), data=self._ranks[0].batches, wait=True
            )
        return Saved(steps, None)


def be(rank: int, world_size: int) -> None:
    """Set the rank and the world size of this process."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world_size))
