"""Saving and restoring a training run: what belongs to it, which rank does what, what to say.

Files are the business of `shelf` and `folder`. Every rank calls both save() and load(); rank 0
alone writes, and says which snapshot all of them go on from. From then on nobody who went on
earlier can add to the directory (see `fences`).
"""

from __future__ import annotations

import dataclasses
import logging
import os
import secrets
import weakref
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from ddpjob_agent import contract
from ddpjob_trainer import folder, reporting, state, stopping
from ddpjob_trainer.errors import SnapshotError
from ddpjob_trainer.fences import Fence, Owner
from ddpjob_trainer.shelf import Shelf
from ddpjob_trainer.writer import Writer

KEEP = 3  # snapshots, when neither the caller nor the job says
EVERY = 100  # steps between two, when the job does not say

_log = logging.getLogger("ddpjob")


@dataclasses.dataclass(frozen=True)
class Loaded:
    """What a snapshot gave beside the state that is already restored."""

    step: int  # steps done when it was saved
    extra: Any


class Snapshots:
    """The snapshots of one training run, in a directory that every worker sees."""

    def __init__(
        self, directory: str | os.PathLike[str] | None = None, keep: int | None = None
    ) -> None:
        """Directory and number to keep come from the job unless given. Raises SnapshotError."""
        chosen = directory or os.environ.get(contract.ENV_SNAPSHOT_DIR)
        if not chosen:
            raise SnapshotError(
                "There is no directory for snapshots. Give the job a spec.snapshot, set "
                f"{contract.ENV_SNAPSHOT_DIR}, or call Snapshots(directory)."
            )
        if keep is None:
            keep = _count(contract.ENV_SNAPSHOT_KEEP, KEEP)
        if keep < 1:
            raise SnapshotError(f"keep is {keep}: at least one snapshot must stay")
        self._every = _count(contract.ENV_SNAPSHOT_EVERY, EVERY)
        self._shelf = Shelf(Path(chosen).absolute(), keep)
        self._last: int | None = None  # after so many steps all stop
        self._is_jobs_own = directory is None  # and no other job's, to take a model from
        self._process = secrets.token_hex(4)
        self._writer = Writer(self._shelf)
        self._waiting: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._fence: Fence | None = None
        self._from: int | None = None  # the step that this membership goes on from

    def due(self, step: int) -> bool:
        """Whether a snapshot is wanted after this many steps; the same on every rank.

        Ask after every step, on every rank: then a planned change of the workers waits for the end
        of a step, and for its snapshot, and costs none. `save` does not return from the last one.
        """
        if self._stops is not None and self._stops.here(step):
            self._last = step
            if _rank() != 0:
                self._stops.ready()
            return True
        return step > 0 and step % self._every == 0

    @cached_property
    def _stops(self) -> stopping.Stops | None:
        """Connected by the first question, for that says that this process can be told."""
        return stopping.connect()

    def save(
        self, step: int, *, model: torch.nn.Module, optimizer: Any = None, scheduler: Any = None,
        data: Any = None, extra: Any = None, wait: bool = False,
    ) -> bool:  # fmt: skip
        """Saves the state after `step` steps; rank 0 writes, others return at once.

        Training goes on while it is written, and `wait`, here or as a call, returns when it is
        durable. While one is being written the next is left out: False. `data` are the `Batches`.
        Raises SnapshotError, also for the one before; earlier snapshots are then untouched.
        """
        if not 0 <= step < 10**12:
            raise ValueError(f"step is {step}: it counts the steps that are done")
        is_last = self._stops is not None and step == self._last
        done = True
        if _rank() == 0:
            what = state.collect(model, extra, optimizer=optimizer, scheduler=scheduler, data=data)
            self._make_wait(optimizer)
            done = self._writer.save(
                step, what, self._own_fence, wait=wait or is_last,
                still=set() if wait or is_last else state.changed_by_step(model, optimizer),
            )  # fmt: skip
        if is_last and self._stops is not None:
            if _rank() == 0:
                self._stops.ready()
            self._stops.wait()
        return done

    def wait(self) -> None:
        """Returns when what has been saved is durable. Raises SnapshotError if it cannot be."""
        self._writer.wait()

    def let_change(self) -> None:
        """Returns when model and optimizer may be changed by other hands than the optimizer's."""
        self._writer.let_change()

    @property
    def skipped(self) -> int:
        """How many were left out because one was still being written."""
        return self._writer.skipped

    def _make_wait(self, optimizer: Any) -> None:
        if isinstance(optimizer, torch.optim.Optimizer) and optimizer not in self._waiting:
            self._waiting.add(optimizer)
            optimizer.register_step_pre_hook(lambda *_: self._writer.let_change())

    def goes_on(self, step: int) -> None:
        """This membership goes on from that step without loading anything."""
        self._from = step

    def load(
        self, *, model: torch.nn.Module, optimizer: Any = None, scheduler: Any = None,
        data: Any = None,
    ) -> Loaded | None:  # fmt: skip
        """Restores the newest whole snapshot in place, the same on every rank; None without one.

        Raises SnapshotError when there are snapshots but none is usable, or when one does not fit.
        """
        self._writer.settle()
        found = self._agreed()
        if found is None:
            reporting.resumed(0)
            return None
        step, content = found
        try:
            state.restore(content, model, optimizer=optimizer, scheduler=scheduler, data=data)
        except state.MisfitError as error:
            raise SnapshotError(
                f"The script does not fit the snapshot {self._shelf.path(step)}: {error}\n"
                "To go on, run the script that saved it. To start afresh, use an empty snapshot "
                f"directory: mv {self._shelf.directory} {self._shelf.directory}.old"
            ) from error
        reporting.resumed(step)
        return Loaded(step, content["extra"])

    def _agreed(self) -> tuple[int, dict[str, Any]] | None:
        if not (distributed.is_available() and distributed.is_initialized()):
            return self._chosen()
        answer: list[Any] = [None, None]  # step, problem: all ranks hear both, so none waits
        found = None
        if distributed.get_rank() == 0:
            try:
                found = self._chosen()
                answer = [found and found[0], None]
            except SnapshotError as error:
                answer = [None, str(error)]
        distributed.broadcast_object_list(answer, src=0)
        step, problem = answer
        if problem is not None:
            raise SnapshotError(problem)
        if step is None or found is not None:
            return found
        try:
            return step, folder.read(self._shelf.path(step))
        except folder.UnusableError as why:
            raise SnapshotError(
                f"Rank 0 goes on from {self._shelf.path(step)}, but rank {_rank()} cannot use it: "
                f"{why}. The snapshot directory must be one that all workers share."
            ) from why

    def _own_fence(self) -> Fence:
        """Raises OvertakenError and OSError."""
        if self._fence is None or self._fence.owner != self._owner():
            step = self._from
            if step is None:
                step = next(iter(self._shelf.complete()), 0)
            self._fence = self._shelf.take(self._owner(), step)
        return self._fence

    def _owner(self) -> Owner:
        membership = os.environ.get(contract.ENV_MEMBERSHIP)
        if not membership:
            return Owner("", self._process)
        return Owner(os.environ.get(contract.ENV_JOB_UID, "ddpjob"), membership)

    def _chosen(self) -> tuple[int, dict[str, Any]] | None:
        """The snapshot to go on from; from now on nobody else adds to what is there."""
        while True:
            there = self._shelf.all_steps()
            found = self._newest()
            self._from = found[0] if found else 0
            self._fence = None
            if not (self._is_jobs_own and self._owner().job):
                return found  # perhaps only to look at: who saves goes on
            try:
                self._own_fence()
            except OSError as error:
                _log.warning(
                    "%s: no fence, before a snapshot is saved: %s", self._shelf.directory, error
                )
                return found
            if not {*self._shelf.all_steps()} - {*there}:
                return found
            # One was added just before the fence stood, and may be relied upon.

    def _newest(self) -> tuple[int, dict[str, Any]] | None:
        reasons: list[str] = []
        try:
            steps = self._shelf.steps(self._owner())
        except OSError as error:
            raise SnapshotError(f"Cannot read {self._shelf.directory}: {error.strerror}") from error
        for step in steps:
            try:
                return step, folder.read(self._shelf.path(step))
            except folder.UnusableError as why:
                reasons.append(f"{self._shelf.path(step)}: {why}")
                _log.warning("ignoring snapshot %s", reasons[-1])
        if reasons:
            raise SnapshotError(
                f"There are snapshots in {self._shelf.directory}, but none is usable:\n  "
                + "\n  ".join(reasons)
                + "\nPut back a good copy, or, to start afresh and lose that progress: "
                f"mv {self._shelf.directory} {self._shelf.directory}.old"
            )
        return None


def _rank() -> int:
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank()
    return int(os.environ.get("RANK", "0"))


def _count(variable: str, default: int) -> int:
    text = os.environ.get(variable) or str(default)
    if not text.isdecimal() or int(text) < 1:
        raise SnapshotError(f"{variable} is {text!r}: a whole number from 1 on is needed")
    return int(text)
