"""Saving and loading a training run: its state, the duties of each rank, and the reports.

The modules `directory` and `snapshot_dir` handle files, and `object_store` handles objects.
`async_writer` writes while training continues, and `loading` agrees on a snapshot. Each rank calls
both save() and load(). Of the ranks with one directory, the lowest rank writes, or each rank writes
a part. After a load, earlier memberships cannot add snapshots (see `writer_fence`).
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
from ddpjob_trainer.snapshots.model.flat_state import FlatState
from ddpjob_trainer.snapshots.model.staging import StagedState
from ddpjob_trainer.snapshots.model.write_plan import is_large
from ddpjob_trainer.snapshots.storage import resolve
from ddpjob_trainer.snapshots.write_round import SOLO, WriteRound
from ddpjob_trainer.snapshots.writer_fence import WriterFence
from ddpjob_trainer.tensors import rng_state, training_state

VARIABLES = (ENV_SNAPSHOT_URI, ENV_SNAPSHOT_DIR)  # the first variable that is set counts
KEEP = 3  # snapshots, if neither the caller nor the job sets a number
EVERY = 100  # steps between two snapshots, if the job sets no number

_log = logging.getLogger("ddpjob")


@dataclasses.dataclass(frozen=True)
class Loaded:
    """The step and the extra state of a snapshot, whose other state is already restored."""

    step: int  # steps done at the time of the save
    extra: Any


class Snapshots:
    """The snapshots of one training run, in a shared directory or in one directory per worker."""

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        keep: int | None = None,
        *,
        share: bool = False,
    ) -> None:
        """Take the directory and the number to keep, by default from the job. Raise SnapshotError.

        With `share`, each rank writes a part of a large state, so each rank must call save(). A
        Loop uses `share`.
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
        self._storage = resolve.resolve_storage(os.fspath(chosen), keep)
        self.share = share
        self._last: int | None = None  # the step after which all ranks stop
        self._is_jobs_own = directory is None  # or another job's, to load its model
        self._writer_fence = WriterFence(self._storage)
        self._writer = AsyncWriter(self._storage)
        self._waiting: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._storage_group = StorageGroup((0,), (0,), 1)
        self._grouped_for: Owner | None = None

    def due(self, step: int) -> bool:
        """Return whether a snapshot is due after this many steps; the result is equal on each rank.

        Call this after each step on each rank. Then a planned change of the workers waits for the
        end of a step and for its snapshot, and loses no step. `save` does not return from the last
        step.
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
        """The link for planned stops, connected at the first call of due()."""
        return planned_stop.connect()

    def save(
        self, step: int, *, model: torch.nn.Module, optimizer: Any = None, scheduler: Any = None,
        scaler: Any = None, data: Any = None, extra: Any = None, wait: bool = False,
    ) -> bool:  # fmt: skip
        """Save the state after `step` steps on one rank per directory; other ranks return at once.

        Training continues during the write. With `wait`, return once the snapshot is durable; with
        `share`, once this rank's part is durable. Return False if an earlier write is still in
        progress: this step is then skipped. `scaler` is a GradScaler, `data` is an
        `ElasticBatchSampler` or a `Stream`. Random states are saved, too. Raise SnapshotError, also
        for the previous save; earlier snapshots stay intact. With `share`, raise RuntimeError if
        the group breaks.
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
                _log.warning("%s", error)  # a change of the workers does not wait for the store
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
        agreed = self._agree_on_write(shares=shares, wait=wait)
        if agreed is None:
            self._writer.skip(step)
            return False
        collected = training_state.collect(model, extra, **parts)
        collected["random"] = rng_state.to_plain(rng_state.get_state())
        state = FlatState(step, collected)
        stable, owner = training_state.changed_by_step(model, optimizer), self._owner
        part = write_round.assign_part(
            state, stable, self._storage_group, _rank(), agreed, lambda: self._owner != owner
        )
        if part is None:
            return True
        self._make_wait(optimizer)
        return self._writer.save(
            step, StagedState(state, part.names), self._writer_fence.fence, owner=owner, part=part,
            unchanged_tensors=stable, wait=wait,
            report=partial(progress.saved, storage=_rank(), storages=self._storage_group.storages),
        )  # fmt: skip

    def _agree_on_write(self, *, shares: bool, wait: bool) -> WriteRound | None:
        """Return the agreed round; None if a writer is busy.

        If the fence fails, the writer saves alone and reports why.
        """
        is_free, fence = wait or not self._writer.is_busy, 0
        if not shares:
            return SOLO if is_free else None
        self.discover_storage_group()
        is_hindered = False
        if self._is_writer and is_free:
            try:
                fence = self._writer_fence.fence().number
            except (SnapshotError, OSError):
                is_free, is_hindered = False, True
        agreed = write_round.agree_on_write(self._storage_group, is_free=is_free, fence=fence)
        return SOLO if is_hindered else agreed

    def wait(self) -> None:
        """Wait until all snapshots are durable. Raise SnapshotError if one cannot be saved."""
        self._writer.wait(self._owner)

    def wait_for_copy(self) -> None:
        """Wait until code other than the optimizer may change the model and optimizer."""
        self._writer.wait_for_copy()

    @property
    def skipped(self) -> int:
        """Number of snapshots skipped during an earlier write or without a reachable storage."""
        return self._writer.skipped

    def _make_wait(self, optimizer: Any) -> None:
        if isinstance(optimizer, torch.optim.Optimizer) and optimizer not in self._waiting:
            self._waiting.add(optimizer)
            optimizer.register_step_pre_hook(lambda *_: self._writer.wait_for_copy())

    def discover_storage_group(self) -> None:
        """Find the ranks with the same directory, on each rank, once per membership.

        Until then, rank 0 alone writes. Raise RuntimeError if the group breaks.
        """
        if self._grouped_for != self._owner:
            self._storage_group = self._storage.group()
            self._grouped_for = self._owner

    @property
    def _is_writer(self) -> bool:
        """True if this rank writes for all ranks with the same directory."""
        return _rank() == (self._storage_group.ranks[0] if self._grouped_for == self._owner else 0)

    @property
    def _may_share(self) -> bool:
        """True if the ranks divide a large state; then all ranks must save."""
        return self.share and collectives.world_size() > 1

    @property
    def _participates(self) -> bool:
        return self._is_writer or self._may_share

    def resume_from(self, step: int) -> None:
        """Record that this membership resumes from `step` without a load."""
        self._writer_fence.resume_from(step)

    def load(
        self, *, model: torch.nn.Module, optimizer: Any = None, scheduler: Any = None,
        scaler: Any = None, data: Any = None,
    ) -> Loaded | None:  # fmt: skip
        """Restore the newest whole snapshot in place, equal on each rank; None if there is none.

        Rank 0 continues with the saved random state; the other ranks derive theirs from that state.
        Raise SnapshotError if no snapshot is usable, or if the snapshot does not fit the script.
        """
        self._writer.finish()
        self.discover_storage_group()
        rank = _rank() if collectives.is_initialized() else 0  # alone, for any environment
        loading = SnapshotLoader(self._storage, rank, self._storage_group, self._owner)
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
                f"The script does not fit the snapshot {self._storage.name(step)}: {error}\n"
                f"To resume, run the script that saved it. To start over: {self._storage.how_to_reset}"
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
        return self._writer_fence.begin(
            step, existing_steps, exclusive=self._is_jobs_own and bool(self._owner.job)
        )

    @property
    def _owner(self) -> Owner:
        return self._writer_fence.owner


def _rank() -> int:
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank()
    return int(os.environ.get("RANK", "0"))


def _count(variable: str, default: int) -> int:
    text = os.environ.get(variable) or str(default)
    if not text.isdecimal() or int(text) < 1:
        raise SnapshotError(f"{variable} is {text!r}: a whole number from 1 on is needed")
    return int(text)
