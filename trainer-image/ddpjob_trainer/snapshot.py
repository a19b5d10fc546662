"""Saving and restoring a training run: what belongs to it, which rank does what, what to say.

Files are the business of `shelf` and `folder`, objects that of `bucket`, writing them while training goes on that of
`writer`, agreeing on one that of `loading`. Every rank calls both save() and load(); of those that
see the same directory the lowest writes. From a load on nobody who went on earlier can add to the
directory (see `fences`).
"""

from __future__ import annotations

import dataclasses
import logging
import os
import secrets
import weakref
from functools import cached_property, partial
from typing import Any

import torch
from torch import distributed

from ddpjob_agent import contract
from ddpjob_trainer import counter, meeting, places, randomness, reporting, state, stopping
from ddpjob_trainer.errors import AwayError, SnapshotError
from ddpjob_trainer.fences import Fence, Owner
from ddpjob_trainer.loading import Loading
from ddpjob_trainer.place import Seers
from ddpjob_trainer.writer import Writer

VARIABLES = (contract.ENV_SNAPSHOT_URI, contract.ENV_SNAPSHOT_DIR)  # the first that is set
KEEP = 3  # snapshots, when neither the caller nor the job says
EVERY = 100  # steps between two, when the job does not say

_log = logging.getLogger("ddpjob")


@dataclasses.dataclass(frozen=True)
class Loaded:
    """What a snapshot gave beside the state that is already restored."""

    step: int  # steps done when it was saved
    extra: Any


class Snapshots:
    """The snapshots of one training run, in a directory that workers share, or one for each."""

    def __init__(
        self, directory: str | os.PathLike[str] | None = None, keep: int | None = None
    ) -> None:
        """Directory and number to keep come from the job unless given. Raises SnapshotError."""
        chosen = directory or next(filter(None, map(os.environ.get, VARIABLES)), None)
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
        self._place = places.find(os.fspath(chosen), keep)
        self._last: int | None = None  # after so many steps all stop
        self._is_jobs_own = directory is None  # and no other job's, to take a model from
        self._process = secrets.token_hex(4)
        self._writer = Writer(self._place)
        self._waiting: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._seers = Seers((0,), (0,), 1)
        self._met_in: Owner | None = None
        self._fence: Fence | None = None
        self._from: int | None = None  # the step that this membership goes on from

    def due(self, step: int) -> bool:
        """Whether a snapshot is wanted after this many steps; the same on every rank.

        Ask after every step, on every rank: then a planned change of the workers waits for the end
        of a step, and for its snapshot, and costs none. `save` does not return from the last one.
        """
        counter.write(step)
        if self._stops is not None and self._stops.here(step):
            self._last = step
            if not self._is_writer:
                self._stops.ready()
            return True
        return step > 0 and step % self._every == 0

    @cached_property
    def _stops(self) -> stopping.Stops | None:
        """Connected by the first question, for that says that this process can be told."""
        return stopping.connect()

    def save(
        self, step: int, *, model: torch.nn.Module, optimizer: Any = None, scheduler: Any = None,
        scaler: Any = None, data: Any = None, extra: Any = None, wait: bool = False,
    ) -> bool:  # fmt: skip
        """Saves the state after `step` steps; one rank for each directory, others return at once.

        Training goes on while it is written, and `wait`, here or as a call, returns when it is
        durable. While one is being written the next is left out: False. `scaler` is a GradScaler,
        `data` are the `Batches`; random generators are saved, too.
        Raises SnapshotError, also for the one before; earlier snapshots are then untouched.
        """
        if not 0 <= step < 10**12:
            raise ValueError(f"step is {step}: it counts the steps that are done")
        is_last = self._stops is not None and step == self._last
        done = True
        if self._is_writer:
            what = state.collect(
                model, extra, optimizer=optimizer, scheduler=scheduler, scaler=scaler, data=data
            )
            what["random"] = randomness.written(randomness.states())
            self._make_wait(optimizer)
            try:
                done = self._writer.save(
                    step, what, self._own_fence, wait=wait or is_last,
                    still=set() if wait or is_last else state.changed_by_step(model, optimizer),
                    report=partial(reporting.saved, place=_rank(), places=self._seers.places),
                )  # fmt: skip
            except AwayError as error:
                if wait:
                    raise
                _log.warning("%s", error)  # the change of workers does not wait for the store
                done = False
        if is_last and self._stops is not None:
            if self._is_writer:
                self._stops.ready()
            self._stops.wait()
        return done

    def wait(self) -> None:
        """Returns when what has been saved is durable. Raises SnapshotError if it cannot be."""
        self._writer.wait(self._owner())

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

    def meet(self) -> None:
        """Every rank finds out with whom it shares the directory; once in a membership.

        Before that rank 0 alone writes. Raises RuntimeError if the group breaks.
        """
        if self._met_in != self._owner():
            self._seers = self._place.seers()
            self._met_in = self._owner()

    @property
    def _is_writer(self) -> bool:
        """Whether this rank writes for those who see the same directory."""
        return _rank() == (self._seers.ranks[0] if self._met_in == self._owner() else 0)

    def goes_on(self, step: int) -> None:
        """This membership goes on from that step without loading anything."""
        self._from = step

    def load(
        self, *, model: torch.nn.Module, optimizer: Any = None, scheduler: Any = None,
        scaler: Any = None, data: Any = None,
    ) -> Loaded | None:  # fmt: skip
        """Restores the newest whole snapshot in place, the same on every rank; None without one.

        Rank 0 goes on with the random numbers of who saved, others with ones that follow from them.
        Raises SnapshotError when there are snapshots but none is usable, or when one does not fit.
        """
        self._writer.settle()
        self.meet()
        rank = _rank() if meeting.is_met() else 0  # alone, whatever the environment says
        loading = Loading(self._place, rank, self._seers, self._owner())
        found = loading.agree(self._go_on)
        self._from = found[0] if found else 0
        if found is None:
            reporting.resumed(0, loaded=self._is_jobs_own)
            return None
        step, content = found
        try:
            state.restore(
                content, model,
                optimizer=optimizer, scheduler=scheduler, scaler=scaler, data=data,
            )  # fmt: skip
        except state.MisfitError as error:
            raise SnapshotError(
                f"The script does not fit the snapshot {self._place.name(step)}: {error}\n"
                f"To go on, run the script that saved it. To start afresh: {self._place.afresh}"
            ) from error
        if "random" in content:
            random = randomness.read(content["random"])
            if _rank() == 0:
                randomness.restore(random)
            else:
                randomness.draw_from(random["torch"], _rank())
        reporting.resumed(step, loaded=self._is_jobs_own)
        return Loaded(step, content["extra"])

    def _own_fence(self) -> Fence:
        """Raises OvertakenError and OSError."""
        if self._fence is None or self._fence.owner != self._owner():
            step = self._from
            if step is None:
                step = next(iter(self._place.complete()), 0)
            self._fence = self._place.take(self._owner(), step)
        return self._fence

    def _owner(self) -> Owner:
        membership = os.environ.get(contract.ENV_MEMBERSHIP)
        if not membership:
            return Owner("", self._process)
        return Owner(os.environ.get(contract.ENV_JOB_UID, "ddpjob"), membership)

    def _go_on(self, step: int, there: list[int]) -> bool:
        """From now on nobody else adds to the directory; whether somebody just did."""
        self._from = step
        self._fence = None
        if not (self._is_jobs_own and self._owner().job):
            return False  # perhaps only to look at: who saves goes on
        try:
            self._own_fence()
        except OSError as error:
            _log.warning("%s: no fence, before a snapshot is saved: %s", self._place.where, error)
            return False
        return bool({*self._place.all_steps()} - {*there})


def _rank() -> int:
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank()
    return int(os.environ.get("RANK", "0"))


def _count(variable: str, default: int) -> int:
    text = os.environ.get(variable) or str(default)
    if not text.isdecimal() or int(text) < 1:
        raise SnapshotError(f"{variable} is {text!r}: a whole number from 1 on is needed")
    return int(text)
