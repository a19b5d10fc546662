"""Random histories of memberships, played to a sampler: which samples are lost, and which come twice.

Histories count steps, so that all samplers have done the same number of steps at a change. What is
counted are the samples of steps that are done, not those that were fetched.
Standard library only: peers of the benchmark play in environments of their own.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import NamedTuple, Protocol

SAMPLES = 1003  # a multiple of nothing that is likely
BATCH = 60  # of all ranks; a multiple of every world size, for samplers that cannot share otherwise
EPOCHS = 3
STEPS = EPOCHS * -(-SAMPLES // BATCH)
SNAPSHOT_EVERY = 5  # steps
LARGEST = 6  # world size
MOST_CHANGES = 5
LONGEST = 9  # steps between two changes: all come before the end

Trained = tuple[int, int]  # a sample, in an epoch


class Change(NamedTuple):
    """The end of a membership and the size of the next one."""

    steps: int  # that it did
    world_size: int  # from then on
    planned: bool  # else: all survivors resume from the last snapshot, or from memory


class History(NamedTuple):
    """The memberships of one run."""

    world_size: int  # at first
    changes: tuple[Change, ...]

    def when_planned(self) -> History:
        """The same for planned changes only."""
        return self._replace(changes=tuple(c._replace(planned=True) for c in self.changes))


def draw(seed: int) -> History:
    """At least one change is unplanned: a worker is lost, or all fail and start again."""
    numbers = random.Random(seed)
    while True:
        size = first = numbers.randint(1, LARGEST)
        changes = []
        for _ in range(numbers.randint(1, MOST_CHANGES)):
            before, size = size, numbers.randint(1, LARGEST)
            planned = size > before or numbers.random() < 0.3
            changes.append(Change(numbers.randint(0, LONGEST), size, planned))
        if not all(change.planned for change in changes):
            return History(first, tuple(changes))


class Saved(NamedTuple):
    """The state that a restart resumes from."""

    steps: int
    state: object


class Sampler(Protocol):
    """All ranks of a membership."""

    stays: bool  # a survivor continues from memory, and sends the state to a new worker

    def begin(self, world_size: int, saved: Saved | None, /) -> None:
        """A new membership; None: the first one."""

    def step(self) -> list[Trained]:
        """Return the samples that all ranks together train on next."""

    def save(self, steps: int, /) -> Saved:
        """Save the state after `steps` steps."""

    def is_done(self, steps: int, /) -> bool:
        """Return whether all epochs are done after these steps."""


class Count(NamedTuple):
    """The counts of one run's ledger."""

    lost: int  # samples that an epoch left out.
    twice: int  # those that came again within an epoch of the result
    again: int  # those of lost steps. These came after the snapshot, and are no part of the result.
    steps_again: int  # the number of these steps


def play(history: History, sampler: Sampler) -> Count:
    """From the beginning to the end of all epochs."""
    ledger: list[list[Trained]] = []
    again = steps_again = 0
    sampler.begin(history.world_size, None)
    saved = sampler.save(0)
    for change in history.changes:
        for _ in range(change.steps):
            if sampler.is_done(len(ledger)):
                break
            ledger.append(sampler.step())
            if len(ledger) % SNAPSHOT_EVERY == 0:
                saved = sampler.save(len(ledger))
        if change.planned or sampler.stays:
            saved = sampler.save(len(ledger))
        void = ledger[saved.steps :]
        del ledger[saved.steps :]
        steps_again += len(void)
        again += sum(map(len, void))
        sampler.begin(change.world_size, saved)
    while not sampler.is_done(len(ledger)):
        ledger.append(sampler.step())
    seen = Counter(trained for step in ledger for trained in step)
    everything = SAMPLES * EPOCHS
    return Count(everything - len(seen), seen.total() - len(seen), again, steps_again)
