"""Saving and restoring a training run: what belongs to it, which rank does what, what to say.

Files are the business of `directory` and `snapshot_dir`, objects that of `object_store`, writing them while
training goes on that of `async_writer`, agreeing on one that of `loading`. Every rank calls both save()
and load(); of those that see the same directory the lowest writes, or each its part. From a load on
nobody who went on earlier can add to the directory (see `writer_fence`).
"""

from __future__ import annotations

import dataclasses
import logging
import os
import weakref
from functools import cached_property, partial
from typing import Any

import torch
from torch import distributed

from ddpjob_protocol.environment import (
    ENV_SNAPSHOT_DIR,
    ENV_SNAPSHOT_EVERY,
    ENV_SNAPSHOT_KEEP,
    ENV_SNAPSHOT_URI,
)
from ddpjob_trainer import collectives
from ddpjob_trainer.agent_link import planned_stop
from ddpjob_trainer.collectives import StorageGroup
from ddpjob_trainer.errors import SnapshotError, StorageUnavailableError
from ddpjob_trainer.reporting import progress, step_counter
from ddpjob_trainer.snapshots import write_round
from ddpjob_trainer.snapshots.async_writer import AsyncWriter
from ddpjob_trainer.snapshots.loading import SnapshotLoader
from ddpjob_trainer.snapshots.model.fencing import Owner
from ddpjob_trainer.snapshots.model.staging import StagedState
from ddpjob_trainer.snapshots.model.write_plan import ALONE, is_large
from ddpjob_trainer.snapshots.storage import resolve
from ddpjob_trainer.snapshots.write_round import WriteRound
from ddpjob_trainer.snapshots.writer_fence import WriterFence
from ddpjob_trainer.tensors import rng_state, training_state

VARIABLES = (ENV_SNAPSHOT_URI, ENV_SNAPSHOT_DIR)  # the first that is set
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
        self,
        directory: str | os.PathLike[str] | None = None,
        keep: int | None = None,
        *,
        share: bool = False,
    ) -> None:
        """Directory and number to keep come from the job unless given. Raises SnapshotError.

        `share`: of a large state each rank writes a part, so that every rank must call save();
        a Loop does so.
        """
        chosen = directory or next(filter(None, map(os.environ.get, VARIABLES)), None)
        if not chosen:
            raise SnapshotError(
                "There is no directory for snapshots. Give the job a spec.snapshot, set "
                f"{ENV_SNAPSHOT_DIR}, or call Snapshots(directory)."
            )
        if keep is None:
            keep = _count(ENV_SNAPSHOT_KEEP, KEEP)
        if keep < 1:
            raise SnapshotError(f"keep is {keep}: at least one snapshot must stay")
        self._every = _count(ENV_SNAPSHOT_EVERY, EVERY)
        self._place = resolve.resolve_storage(os.fspath(chosen), keep)
        self.share = share
        self._last: int | None = None  # after so many steps all stop
        self._is_jobs_own = directory is None  # and no other job's, to take a model from
        self._turn = WriterFence(self._place)
        self._writer = AsyncWriter(self._place)
        self._waiting: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._seers = StorageGroup((0,), (0,), 1)
        self._met_in: Owner | None = None

    def due(self, step: int) -> bool:
        """Whether a snapshot is wanted after this many steps; the same on every rank.

        Ask after every step, on every rank: then a planned change of the workers waits for the end
        of a step, and for its snapshot, and costs none. `save` does not return from the last one.
        """
        step_counter.write(step)
        if self._stops is not None and self._stops.is_due_at(step):
            self._last = step
            if not self._participates:
                self._stops.ready()
            return True
        return step > 0 and step % self._every == 0

    @cached_property
    def _stops(self) -> planned_stop.PlannedStop | None:
        """Connected by the first question, for that says that this process can be told."""
        return planned_stop.connect()

    def save(
        self, step: int, *, model: torch.nn.Module, optimizer: Any = None, scheduler: Any = None,
        scaler: Any = None, data: Any = None, extra: Any = None, wait: bool = False,
    ) -> bool:  # fmt: skip
        """Saves the state after `step` steps; one rank for each directory, others return at once.

        Training goes on while it is written, and `wait`, here or as a call, returns when it is
        durable; with `share`, when this rank's part is. While one is being written the next is left
        out: False. `scaler` is a GradScaler, `data` are the `ElasticBatchSampler`; random generators are saved,
        too.
        Raises SnapshotError, also for the one before; earlier snapshots are then untouched. With
        `share` RuntimeError, too, if the group breaks.
        """
        if not 0 <= step < 10**12:
            raise ValueError(f"step is {step}: it counts the steps that are done")
        is_last = self._stops is not None and step == self._last
        done = True
        if self._participates:
            parts = {"optimizer": optimizer, "scheduler": scheduler, "scaler": scaler, "data": data}
            try:
                done = self._save(step, model, extra, parts, wait=wait or is_last)
            except StorageUnavailableError as error:
                if wait:
                    raise
                _log.warning("%s", error)  # the change of workers does not wait for the store
                done = False
        if is_last and self._stops is not None:
            if self._participates:
                self._stops.ready()
            self._stops.wait()
        return done

    def _save(
        self, step: int, model: torch.nn.Module, extra: Any, parts: dict[str, Any], *, wait: bool
    ) -> bool:
        optimizer = parts["optimizer"]
        shares = self._may_share and is_large(training_state.is_on_all(model, optimizer))
        if not (shares or self._is_writer):
            return True
        agreed = None
        if shares:
            self.discover_storage_group()
            agreed = self._agree_on_write(wait=wait)
        is_free = agreed is not None if shares else wait or not self._writer.is_busy
        if not is_free:
            self._writer.skip(step)
            return False
        what = training_state.collect(model, extra, **parts)
        what["random"] = rng_state.to_plain(rng_state.get_state())
        content = StagedState(step, what)
        still = training_state.changed_by_step(model, optimizer)
        part = ALONE
        if agreed is not None and agreed.attempt_id:
            owner = self._owner
            mine = write_round.assign_part(
                content, still, self._seers, _rank(), agreed, lambda: self._owner != owner
            )
            if mine is None:
                return True
            part = mine
        self._make_wait(optimizer)
        return self._writer.save(
            step, content, self._turn.fence, owner=self._owner, part=part, stable_storages=still, wait=wait,
            report=partial(progress.saved, place=_rank(), places=self._seers.places),
        )  # fmt: skip

    def _agree_on_write(self, *, wait: bool) -> WriteRound | None:
        """What all agree on. Who would write and cannot hears why when it saves alone."""
        is_free, fence = wait or not self._writer.is_busy, 0
        is_hindered = False
        if self._is_writer and is_free:
            try:
                fence = self._turn.fence().number
            except (SnapshotError, OSError):
                is_free, is_hindered = False, True
        agreed = write_round.agree_on_write(self._seers, is_free=is_free, fence=fence)
        return WriteRound(True, 0, "") if is_hindered else agreed

    def wait(self) -> None:
        """Returns when what has been saved is durable. Raises SnapshotError if it cannot be."""
        self._writer.wait(self._owner)

    def wait_for_copy(self) -> None:
        """Returns when model and optimizer may be changed by other hands than the optimizer's."""
        self._writer.wait_for_copy()

    @property
    def skipped(self) -> int:
        """How many were left out because one was still being written."""
        return self._writer.skipped

    def _make_wait(self, optimizer: Any) -> None:
        if isinstance(optimizer, torch.optim.Optimizer) and optimizer not in self._waiting:
            self._waiting.add(optimizer)
            optimizer.register_step_pre_hook(lambda *_: self._writer.wait_for_copy())

    def discover_storage_group(self) -> None:
        """Every rank finds out with whom it shares the directory; once in a membership.

        Before that rank 0 alone writes. Raises RuntimeError if the group breaks.
        """
        if self._met_in != self._owner:
            self._seers = self._place.group()
            self._met_in = self._owner

    @property
    def _is_writer(self) -> bool:
        """Whether this rank writes for those who see the same directory."""
        return _rank() == (self._seers.ranks[0] if self._met_in == self._owner else 0)

    @property
    def _may_share(self) -> bool:
        """Whether ranks divide the work where it is much: then all of them must save."""
        return self.share and collectives.world_size() > 1

    @property
    def _participates(self) -> bool:
        return self._is_writer or self._may_share

    def resume_from(self, step: int) -> None:
        """This membership goes on from that step without loading anything."""
        self._turn.resume_from(step)

    def load(
        self, *, model: torch.nn.Module, optimizer: Any = None, scheduler: Any = None,
        scaler: Any = None, data: Any = None,
    ) -> Loaded | None:  # fmt: skip
        """Restores the newest whole snapshot in place, the same on every rank; None without one.

        Rank 0 goes on with the random numbers of who saved, others with ones that follow from them.
        Raises SnapshotError when there are snapshots but none is usable, or when one does not fit.
        """
        self._writer.finish()
        self.discover_storage_group()
        rank = (
            _rank() if collectives.is_initialized() else 0
        )  # alone, whatever the environment says
        loading = SnapshotLoader(self._place, rank, self._seers, self._owner)
        found = loading.load_agreed(self._resume)
        self.resume_from(found[0] if found else 0)
        if found is None:
            progress.resumed(0, loaded=self._is_jobs_own)
            return None
        step, content = found
        try:
            training_state.restore(
                content, model,
                optimizer=optimizer, scheduler=scheduler, scaler=scaler, data=data,
            )  # fmt: skip
        except training_state.StateMismatchError as error:
            raise SnapshotError(
                f"The script does not fit the snapshot {self._place.name(step)}: {error}\n"
                f"To go on, run the script that saved it. To start afresh: {self._place.how_to_reset}"
            ) from error
        if "random" in content:
            random = rng_state.from_plain(content["random"])
            if _rank() == 0:
                rng_state.set_state(random)
            else:
                rng_state.draw_from(random["torch"], _rank())
        progress.resumed(step, loaded=self._is_jobs_own)
        return Loaded(step, content["extra"])

    def _resume(self, step: int, existing_steps: list[int]) -> bool:
        return self._turn.begin(
            step, existing_steps, exclusive=self._is_jobs_own and bool(self._owner.job)
        )

    @property
    def _owner(self) -> Owner:
        return self._turn.owner


def _rank() -> int:
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank()
    return int(os.environ.get("RANK", "0"))


def _count(variable: str, default: int) -> int:
    text = os.environ.get(variable) or str(default)
    if not text.isdecimal() or int(text) < 1:
        raise SnapshotError(f"{variable} is {text!r}: a whole number from 1 on is needed")
    return int(text)
