"""Plays histories of memberships to a sampler: one JSON line for each history.

    samplers.py SAMPLER planned|lost < histories.json

Samplers are used as their authors advise, ranks in turn in one process. Batches are cut so that a step
has the same number of samples for all, whatever the world size; but torchft's has fewer while
replica groups are away. Runs where the sampler is: in this project's environment, or in a peer's.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from torch.utils.data import DataLoader

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from support.histories import (
    BATCH,
    EPOCHS,
    SAMPLES,
    STEPS,
    Change,
    History,
    Sampler,
    Saved,
    Trained,
    play,
)

NUMBERS = range(SAMPLES)  # the data set: sample i is i
Loader = Iterator[list[int]]


def loader(sampler: object, size: int) -> Loader:
    """Return the batches of one rank."""
    return iter(DataLoader(NUMBERS, batch_size=size, sampler=sampler, collate_fn=list))  # type: ignore[arg-type]


class Restarted:
    """All ranks start again with each membership, from an epoch and a number of its samples."""

    stays = False

    def __init__(self) -> None:
        self.epoch = 0
        self.done = 0  # samples of the epoch that have been trained on, as the script counts them
        self.steps = 0  # in all
        self.since = 0  # steps of this epoch in this membership
        self.world_size = 1
        self._loaders: list[Loader] = []
        self._coming: list[list[int]] = []  # of all ranks

    def begin(self, world_size: int, saved: Saved | None) -> None:
        """Resume from there."""
        self.world_size = world_size
        self.steps, state = (0, (0, 0)) if saved is None else saved
        self.epoch, self.done = state  # type: ignore[misc]
        self._open()

    def step(self) -> list[Trained]:
        """Return the samples that all ranks together train on next."""
        if self.at_end:
            self.epoch, self.done = self.epoch + 1, 0
            self._open()
        trained = [(self.epoch, sample) for batch in self._coming for sample in batch]
        self._coming = [next(each, []) for each in self._loaders]
        self.done += BATCH
        self.since += 1
        self.steps += 1
        return trained

    def save(self, steps: int) -> Saved:
        """After an epoch comes the next one."""
        return Saved(steps, (self.epoch + 1, 0) if self.at_end else (self.epoch, self.done))

    def is_done(self, _: int) -> bool:
        """Return whether all epochs have been trained on."""
        return self.epoch + self.at_end >= EPOCHS

    @property
    def at_end(self) -> bool:
        """True at the end of the epoch."""
        return not any(self._coming)

    def _open(self) -> None:
        size = BATCH // self.world_size
        samplers = [self.sampler(rank) for rank in range(self.world_size)]
        self._loaders = [loader(each, size) for each in samplers]
        self._coming = [next(each, []) for each in self._loaders]
        self.since = 0

    def sampler(self, rank: int) -> object:
        """One rank's, at `done` of `epoch`."""
        raise NotImplementedError


class Torch(Restarted):
    """torch's, with the sample to start from: its only means to resume within an epoch."""

    def sampler(self, rank: int) -> object:
        """A new one for each epoch: `start_index` would hold for the next one, too."""
        from torch.distributed.elastic.utils.data import ElasticDistributedSampler  # noqa: PLC0415

        made: ElasticDistributedSampler[int] = ElasticDistributedSampler(
            NUMBERS,  # type: ignore[arg-type]
            num_replicas=self.world_size, rank=rank, start_index=self.done,
        )  # fmt: skip
        made.set_epoch(self.epoch)
        return made


class TorchByEpoch(Torch):
    """The same as in torchelastic's example for ImageNet: a checkpoint at the end of each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self._newest = Saved(0, (0, 0))

    def step(self) -> list[Trained]:
        """Return the samples that all ranks together train on next."""
        trained = super().step()
        if self.at_end:
            self._newest = Saved(self.steps, (self.epoch + 1, 0))
        return trained

    def save(self, _: int) -> Saved:
        """Nothing new within an epoch."""
        return self._newest


class DLRover(Restarted):
    """DLRover's, with its own state, in which the script counts the samples."""

    def sampler(self, rank: int) -> object:
        """Restored, within an epoch."""
        from dlrover.trainer.torch.elastic.sampler import ElasticDistributedSampler  # noqa: PLC0415

        made = ElasticDistributedSampler(NUMBERS, num_replicas=self.world_size, rank=rank)
        made.set_epoch(self.epoch)
        if self.done:
            made.load_state_dict({"epoch": self.epoch, "completed_num": self.done})
        self.made = made
        return made


class DLRoverByStep(DLRover):
    """The same as in DLRover's example (mnist/cnn_train.py): it gets the number of steps done.

    The example counts them from zero in each epoch, and whenever the process starts.
    """

    def save(self, steps: int) -> Saved:
        """By the sampler's own account."""
        state = self.made.state_dict(self.since, BATCH // self.world_size)
        return Saved(steps, (state["epoch"], state["completed_num"]))


class Torchft:
    """torchft's: a shard for each possible replica group; an absent group leaves its own.

    Counted in its favour: a group that returns resumes where it was, as with a loader that saves
    its state after each step. No batch is dropped when groups come and go.
    """

    stays = True

    def __init__(self, most: int) -> None:
        from torchft.data import DistributedSampler  # type: ignore[import-not-found]  # noqa: PLC0415

        self._samplers = [
            DistributedSampler(NUMBERS, group, most, group_rank=0, num_replicas=1, shuffle=True)
            for group in range(most)
        ]
        self._size = BATCH // most
        self._epochs = [0] * most
        self._loaders = [loader(each, self._size) for each in self._samplers]
        self._up = 0  # groups

    def begin(self, world_size: int, _: Saved | None) -> None:
        """The first groups are there."""
        self._up = world_size

    def step(self) -> list[Trained]:
        """Return the samples that all groups together train on next."""
        return [trained for group in range(self._up) for trained in self._of(group)]

    def _of(self, group: int) -> list[Trained]:
        batch = next(self._loaders[group], None)
        if batch is None:
            self._epochs[group] += 1
            self._samplers[group].set_epoch(self._epochs[group])
            self._loaders[group] = loader(self._samplers[group], self._size)
            batch = next(self._loaders[group])
        return [(self._epochs[group], sample) for sample in batch]

    def save(self, steps: int) -> Saved:
        """Keep the state in memory."""
        return Saved(steps, None)

    def is_done(self, steps: int) -> bool:
        """After as many steps as all groups together need for all epochs."""
        return steps >= STEPS


def ours(level: str, folder: Path) -> Sampler:
    """`ElasticBatchSampler`; loaders fetch ahead."""
    from trainer.data.playing import Live, Saving  # noqa: PLC0415 - not in the peers' environments

    return Live(workers=1) if level == "L2" else Saving(workers=1, directory=folder)


def made(name: str, history: History, folder: Path) -> Sampler:
    """A fresh one for this history."""
    if name in ("L1", "L2"):
        return ours(name, folder)
    if name == "torchft":
        return Torchft(max(history.world_size, *(c.world_size for c in history.changes)))
    peers: dict[str, Callable[[], Sampler]] = {
        "torch": Torch, "torch-epoch": TorchByEpoch, "dlrover": DLRover,
        "dlrover-step": DLRoverByStep,
    }  # fmt: skip
    return peers[name]()


def main(name: str, kind: str) -> None:
    for first, changes in json.load(sys.stdin):
        history = History(first, tuple(Change(*each) for each in changes))
        history = history.when_planned() if kind == "planned" else history
        with tempfile.TemporaryDirectory(prefix="ddpjob-bench-") as folder:
            print(json.dumps(play(history, made(name, history, Path(folder)))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
