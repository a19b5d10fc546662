"""Saving and loading a training run: its state, the duties of each rank, and the reports.

The module `storage.snapshot_storage` handles files and objects.
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

from ddpjob_trainer import collectives
from ddpjob_trainer.agent_link import planned_stop
from ddpjob_trainer.errors import StorageUnavailableError
from ddpjob_trainer.reporting import progress, step_counter
from ddpjob_trainer.snapshots import restoring, settings
from ddpjob_trainer.snapshots.first_check import FirstCheck
from ddpjob_trainer.snapshots.loading import SnapshotLoader
from ddpjob_trainer.snapshots.model.fencing import Owner
from ddpjob_trainer.snapshots.model.flat_state import FlatState
from ddpjob_trainer.snapshots.model.staging import StagedState
from ddpjob_trainer.snapshots.model.write_plan import is_large
from ddpjob_trainer.snapshots.own_memory import OwnMemory
from ddpjob_trainer.snapshots.sharded.layout import is_sharded
from ddpjob_trainer.snapshots.sharded.saving import ShardedSave
from ddpjob_trainer.snapshots.sharded.targets import prepare_read
from ddpjob_trainer.snapshots.storage import resolve
from ddpjob_trainer.snapshots.writing import write_round
from ddpjob_trainer.snapshots.writing.async_writer import AsyncWriter
from ddpjob_trainer.snapshots.writing.rank_duties import RankDuties
from ddpjob_trainer.snapshots.writing.write_round import SOLO, WriteRound
from ddpjob_trainer.snapshots.writing.writer_fence import WriterFence
from ddpjob_trainer.tensors import rng_state, training_state

_log = logging.getLogger("ddpjob")


@dataclasses.dataclass(frozen=True)
class Loaded:
    """The step and the extra state of a snapshot, whose other state is already restored."""

    step: int  # steps done at the time of the save
    extra: Any  # what save() was given as `extra`


class Snapshots:
    """The snapshots of one training run, in a shared directory or in one directory per worker."""

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        keep: int | None = None,
        *,
        share: bool = False,
        other_job: bool = False,
        check_replicas: bool = True,
    ) -> None:
        """Take the directory and the number to keep, by default from the job.

        `directory` is a path or a URI, such as s3://bucket/prefix. `keep` is a number of snapshots.
        With `share`, each rank writes a part of a large state, so each rank must call save(). A
        Loop uses `share`. With `other_job`, resume from the snapshot of a job of another name. Raise
        SnapshotError if there is no directory, or if the storage cannot be used. With `check_replicas`,
        due() and save() compare samples of the ranks' parameters, if all ranks call them, and raise
        SnapshotError on rank 0 if they differ. Sharded models are not compared.
        """
        self._storage = resolve.resolve_storage(
            settings.where(directory), settings.keep(keep), settings.limit(directory)
        )
        self._every = settings.every()
        self._last: int | None = None  # the step after which all ranks stop
        self._is_jobs_own = directory is None  # or another job's, to load its model
        self._writer_fence = WriterFence(self._storage, other_job=other_job)
        self._duties = RankDuties(self._storage, self._writer_fence, shares=share)
        self._writer = AsyncWriter(self._storage)
        self._waiting: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._check = FirstCheck(check_replicas=check_replicas)

    def due(self, step: int) -> bool:
        """Return whether a snapshot is due after `step` steps; the result is equal on each rank.

        Call this after each step on each rank. Then a planned change of the workers waits for the
        end of a step and for its snapshot, and loses no step. `save` does not return from the last
        step.
        """
        step_counter.write(step)
        self._check.after_step(step)
        if self._stops is not None and self._stops.is_due_at(step):
            self._last = step
            if not self._duties.participates:
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
        progress, or if this run has saved or loaded this step already: then this step is skipped.
        `model` and each `optimizer` are written with all of their tensors; `optimizer` and `scheduler`
        may be lists. `scaler` is a GradScaler, `data` is an `ElasticBatchSampler` or a `Stream`. `extra`
        is made of tensors, numbers, texts, lists, tuples and dicts. Random states are saved, too. Raise SnapshotError, also for the previous save, unless that one only was skipped;
        earlier snapshots stay intact. With `share`, raise RuntimeError if the group breaks.
        """
        if not 0 <= step < 10**12:
            raise ValueError(f"step is {step}: it counts the steps that are done")
        parts = {"optimizer": optimizer, "scheduler": scheduler, "scaler": scaler, "data": data}
        self._check.before_save(step, model, extra, parts)
        is_last = self._stops is not None and step == self._last
        done = True
        self._duties.is_sharded = is_sharded(model)
        if self._duties.participates:
            try:
                done = self._save(step, model, extra, parts, wait=wait or is_last)
                if wait:  # the others had the time of the write
                    self._check.replicas.compare()
            except StorageUnavailableError as error:
                if wait:
                    raise
                _log.warning("%s", error)  # a change of the workers does not wait for the store
                done = False
        if is_last and self._stops is not None:
            if self._duties.participates:
                self._stops.ready()
            self._stops.wait()
        return done

    def _save(
        self, step: int, model: torch.nn.Module, extra: Any, parts: dict[str, Any], *, wait: bool
    ) -> bool:
        optimizer = parts["optimizer"]
        if self._duties.is_sharded:
            self._duties.discover()
            self._make_wait(optimizer)
            saving = ShardedSave(self._storage, self._duties.group, self._writer_fence)
            return saving.save(self._writer, step, model, {"extra": extra, **parts}, wait=wait)
        shares = self._duties.may_share and is_large(training_state.is_on_all(model, optimizer))
        if not (shares or self._duties.is_writer):
            return True
        begin = self._writer_fence.resumed_from
        is_repeated = self._writer.repeats(step, self._owner, begin, wait=wait)
        is_free = not is_repeated and (wait or not self._writer.is_busy)
        agreed = self._agree_on_write(is_free=is_free) if shares else SOLO if is_free else None
        if agreed is None:
            if not is_repeated:
                self._writer.skip(step)
            return False
        collected = training_state.collect(model, extra, **parts)
        collected["random"] = rng_state.to_plain(rng_state.get_state())
        state = FlatState(step, collected)
        stable, owner = training_state.changed_by_step(model, optimizer), self._owner
        part = write_round.assign_part(
            state, stable, self._duties.group, self._rank, agreed, lambda: self._owner != owner
        )
        if part is None:
            return True
        self._make_wait(optimizer)
        return self._writer.save(
            step, StagedState(state, part.names), self._writer_fence.fence, owner=owner, part=part,
            unchanged_tensors=stable, wait=wait,
            report=partial(progress.saved, storage=self._rank, storages=self._duties.group.storages),
        )  # fmt: skip

    def _agree_on_write(self, *, is_free: bool) -> WriteRound | None:
        self._duties.discover()
        fence = self._writer_fence.fence if self._duties.is_writer else None
        return write_round.agree_on_write(self._duties.group, fence, is_free=is_free)

    def wait(self) -> None:
        """Wait until all snapshots are durable. Raise SnapshotError if one cannot be saved."""
        self._writer.wait(self._owner)
        self._check.replicas.compare()

    def wait_for_copy(self) -> None:
        """Wait until code other than the optimizer may change the model and optimizer."""
        self._writer.wait_for_copy()

    @property
    def skipped(self) -> int:
        """Number of snapshots skipped during an earlier write or without a reachable storage."""
        return self._writer.skipped

    def _make_wait(self, optimizer: Any) -> None:
        for each in training_state.optimizers_of(optimizer):
            if each not in self._waiting:
                self._waiting.add(each)
                each.register_step_pre_hook(lambda *_: self._writer.wait_for_copy())

    def discover_storage_group(self) -> None:
        """Find the ranks with the same storage, on each rank. Raise RuntimeError if the group breaks."""
        self._duties.discover()

    @property
    def is_half_loaded(self) -> bool:
        """True if a load has failed, and may have overwritten a part of the model."""
        return self._check.is_half_loaded

    def serve_loop(self) -> None:
        """From now on, a Loop calls this object: the state is safe in memory, and it compares replicas.

        If the volume is full, skip and report a snapshot; raise only with `wait`.
        """
        self._writer.survives_full_volume = True
        self._check.replicas.enabled = False

    def resume_from(self, step: int) -> None:
        """Record that this membership resumes from `step` without a load: another process sent it."""
        self._check.note_received()
        self._writer_fence.resume_from(step)

    def load(
        self, *, model: torch.nn.Module, optimizer: Any = None, scheduler: Any = None,
        scaler: Any = None, data: Any = None,
    ) -> Loaded | None:  # fmt: skip
        """Restore the newest whole snapshot in place, equal on each rank; None if there is none.

        `model`, `optimizer`, `scheduler`, `scaler` and `data` are those that save() gets, with the same
        shapes. Rank 0 continues with the saved random state; the other ranks derive theirs from that state.
        Raise SnapshotError if no snapshot is usable, if the snapshot does not fit the script, if a
        snapshot cannot hold the script's state, or before init_process_group. Every rank raises, and
        from then on save() and due() raise until a load() succeeds.
        """
        parts = {"optimizer": optimizer, "scheduler": scheduler, "scaler": scaler, "data": data}
        own = OwnMemory(model, parts)
        with self._check.loading(own):
            collectives.check_group()
            loading = self._prepare_load(model, parts, own)
            found = loading.load_agreed(self._check_writer, self._resume)
            self._writer_fence.resume_from(found[0] if found else 0)
            with collectives.raising_together():
                if found is not None:
                    own.is_overwritten = True
                    restoring.restore(
                        found[1],
                        model,
                        parts,
                        rank=self._rank,
                        storage=self._storage,
                        step=found[0],
                    )
        if found is None:
            progress.resumed(0, loaded=self._is_jobs_own)
            return None
        step, content = found
        if loading.is_in_own_storage:
            self._writer.note_saved(self._owner, step)
        progress.resumed(step, loaded=self._is_jobs_own)
        return Loaded(step, content["extra"])

    def _prepare_load(
        self, model: torch.nn.Module, parts: dict[str, Any], own: OwnMemory
    ) -> SnapshotLoader:
        optimizer = parts["optimizer"]
        with collectives.raising_together():
            self._check.before_load(model, parts)
            self._writer.finish()
            self._storage.make_room(training_state.is_on_all(model, optimizer), None)
        self._duties.discover()
        self._duties.is_sharded, read = is_sharded(model), None
        if self._duties.is_sharded:
            read = prepare_read(self._storage, self._duties.group, model, optimizer, own)
        rank, group = collectives.rank(), self._duties.group
        return SnapshotLoader(self._storage, rank, group, self._owner, read, own)

    def _check_writer(self, writer: Owner | None) -> None:
        if self._is_exclusive:
            self._writer_fence.check_job(writer)

    def _resume(self, step: int, existing_steps: list[int], writer: Owner | None) -> bool:
        return self._writer_fence.begin(step, existing_steps, writer, exclusive=self._is_exclusive)

    @property
    def _is_exclusive(self) -> bool:
        """True if this job alone may continue from the storage."""
        return self._is_jobs_own and bool(self._owner.job)

    @property
    def _owner(self) -> Owner:
        return self._writer_fence.owner

    @property
    def _rank(self) -> int:
        return collectives.ranks()[0]
