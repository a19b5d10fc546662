"""One save of a sharded state by all ranks: their agreement, and the part of each rank."""

from __future__ import annotations

import secrets
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ddpjob_trainer import collectives
from ddpjob_trainer.errors import SnapshotError, StorageUnavailableError
from ddpjob_trainer.reporting import progress
from ddpjob_trainer.snapshots.model.write_plan import WriteAssignment
from ddpjob_trainer.snapshots.sharded.layout import local_of
from ddpjob_trainer.snapshots.sharded.state import ShardedContent, ShardedState
from ddpjob_trainer.snapshots.sharded.write_plan import Holding, plan_write
from ddpjob_trainer.tensors import rng_state, training_state

if TYPE_CHECKING:
    from ddpjob_trainer.collectives import StorageGroup
    from ddpjob_trainer.snapshots.storage.snapshot_storage import SnapshotStorage
    from ddpjob_trainer.snapshots.writing.async_writer import AsyncWriter
    from ddpjob_trainer.snapshots.writing.writer_fence import WriterFence


class _Report(NamedTuple):
    """The contribution of one rank; the first rank's word and fence hold for all."""

    is_free: bool
    word: str
    fence: int
    is_repeat: bool
    holding: Holding


class ShardedSave:
    """One save by all ranks together."""

    def __init__(
        self,
        storage: SnapshotStorage,
        storage_group: StorageGroup,
        writer_fence: WriterFence,
    ) -> None:
        """Raise SnapshotError if the ranks do not share one storage."""
        check_storages(storage_group, storage)
        self._storage = storage
        self._writer_fence = writer_fence
        self._rank = collectives.rank()

    def save(
        self,
        writer: AsyncWriter,
        step: int,
        model: torch.nn.Module,
        parts: dict[str, Any],
        *,
        wait: bool,
    ) -> bool:
        """Save the state; return False if a rank is busy. Each rank must call this.

        Raise SnapshotError on all ranks if one of them cannot save; with `wait`, also if one of
        them cannot write. Raise RuntimeError if the group breaks.
        """
        state, part = self._agree(writer, step, model, parts, wait=wait)
        if part is None:
            return False
        save = partial(
            writer.save, step, ShardedContent(state), self._writer_fence.fence,
            owner=self._writer_fence.owner, part=part, wait=wait,
            unchanged_tensors=_changed_by_step(model, parts["optimizer"]),
            report=partial(progress.saved, storage=0, storages=1),
        )  # fmt: skip
        return _agree_on_result(save) if wait else save()

    def _agree(
        self,
        writer: AsyncWriter,
        step: int,
        model: torch.nn.Module,
        parts: dict[str, Any],
        *,
        wait: bool,
    ) -> tuple[ShardedState, WriteAssignment | None]:
        """Return the state and what this rank writes of it; None if the step is skipped."""
        problem, state, fence, is_repeat = None, None, 0, False
        is_free, owner = wait or not writer.is_busy, self._writer_fence.owner
        try:
            is_repeat = writer.repeats(step, owner, self._writer_fence.resumed_from, wait=wait)
            state = _collect(step, model, parts)
            if self._rank == 0 and is_free and not is_repeat:
                fence = self._fence(step)
        except SnapshotError as error:
            problem = error
        word, holding = secrets.token_hex(4), state.holding if state else {}
        mine = _Report(is_free, word, fence, is_repeat, holding)
        gathered = collectives.all_gather_results(mine, problem)
        assert state is not None
        if any(each.is_repeat for each in gathered):
            return state, None
        if not all(each.is_free for each in gathered):
            writer.skip(step)
            return state, None
        plan = plan_write([each.holding for each in gathered])
        state.choose(plan, self._rank)
        first = gathered[0]
        return state, WriteAssignment(
            self._rank, len(gathered), first.word, first.fence, plan.outlines,
            lambda: self._writer_fence.owner != owner,
        )  # fmt: skip

    def _fence(self, step: int) -> int:
        try:
            return self._writer_fence.fence().number
        except OSError as error:
            cause, remedy = self._storage.files.explain_error(error, 0)
            is_transient = self._storage.files.is_transient(error)
            kind = StorageUnavailableError if is_transient else SnapshotError
            raise kind(
                f"Step {step} is not saved in {self._storage.where}: {cause}. {remedy}"
            ) from error


def check_storages(storage_group: StorageGroup, storage: SnapshotStorage) -> None:
    """Raise SnapshotError if the ranks do not share one storage."""
    if storage_group.storages > 1:
        raise SnapshotError(
            f"The model is sharded, but the workers do not share {storage.where}: there are "
            f"{storage_group.storages} directories of this name, and each would hold only a part of "
            "a snapshot. Use a claim with ReadWriteMany (spec.snapshot.storage), or a bucket "
            "(spec.snapshot.uri)."
        )


def _agree_on_result(save: partial[bool]) -> bool:
    """Save, and raise the first SnapshotError of any rank on all ranks."""
    problem, done = None, False
    try:
        done = save()
    except SnapshotError as error:
        problem = error
    return all(collectives.all_gather_results(done, problem))


def _collect(step: int, model: torch.nn.Module, parts: dict[str, Any]) -> ShardedState:
    collected = training_state.collect(model, **parts)
    collected["random"] = rng_state.to_plain(rng_state.get_state())
    return ShardedState(step, collected)


def _changed_by_step(model: torch.nn.Module, optimizer: Any) -> set[int]:
    """Return the addresses of the storages that only a step of the optimizer changes."""
    tensors = training_state.optimized(model, optimizer)
    return {local_of(each).untyped_storage().data_ptr() for each in tensors}
