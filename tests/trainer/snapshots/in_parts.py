"""Two ranks that write one snapshot, in one process: first the second one's part, then the rest."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path

from ddpjob_trainer.collectives import StorageGroup
from ddpjob_trainer.snapshots.model.fencing import Fence
from ddpjob_trainer.snapshots.model.flat_state import FlatState
from ddpjob_trainer.snapshots.model.staging import StagedState
from ddpjob_trainer.snapshots.model.write_plan import WriteAssignment, never
from ddpjob_trainer.snapshots.storage.snapshot_storage import SnapshotStorage
from ddpjob_trainer.snapshots.writing import write_round
from ddpjob_trainer.snapshots.writing.write_round import WriteRound
from ddpjob_trainer.tensors import training_state
from trainer.runs import Run

BOTH = StorageGroup((0, 1), (0, 1), 1)


def content_of(
    step: int, run: Run, rank: int, fence: Fence, word: str, over: Callable[[], bool] = never
) -> tuple[StagedState, WriteAssignment]:
    """Return the part of one rank and its assignment; the state must be large enough."""
    state = FlatState(step, training_state.collect(run.model, None, optimizer=run.optimizer))
    still = training_state.changed_by_step(run.model, run.optimizer)
    call = WriteRound(is_free=True, fence=fence.number, attempt_id=word)
    part = write_round.assign_part(state, still, BOTH, rank, call, over)
    assert part is not None
    assert part.writers == 2
    return StagedState(state, part.names), part


def publish(place: SnapshotStorage, step: int, run: Run, fence: Fence) -> None:
    """A whole snapshot."""
    word = secrets.token_hex(4)
    content, part = content_of(step, run, 1, fence, word)
    place.write_part(step, content, part)
    content, part = content_of(step, run, 0, fence, word)
    place.commit(step, content, fence, part)


def files_in(path: Path) -> list[str]:
    """Return the files of one snapshot."""
    return sorted(each.name for each in path.iterdir())
