"""A writer that saves snapshots while training continues: copy the state, then write the copy.

Parameters and the optimizer's state change only in the optimizer's step. So the writer copies them
while the next step is computed, and the optimizer's step waits for the copy. Copied data is written
during the rest of the copy. The writer writes one snapshot at a time. If a snapshot is due during a
write, the writer skips and counts that snapshot. If memory is too short for a copy, training waits
for the whole write. This module does not depend on ranks or on the contents of a state.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import threading
from functools import partial
from typing import TYPE_CHECKING

from ddpjob_trainer import host_memory
from ddpjob_trainer.errors import (
    FencedError,
    NoCopyMemoryError,
    SnapshotError,
    StateChangedError,
    StorageUnavailableError,
)
from ddpjob_trainer.snapshots.model.write_plan import PartsMissingError, WriteAssignment
from ddpjob_trainer.snapshots.writing.background import Background
from ddpjob_trainer.snapshots.writing.memory_budget import MemoryPlan, plan_memory
from ddpjob_trainer.tensors.copy_jobs import CopyJob
from ddpjob_trainer.tensors.safetensors_writer import StagingBuffer

if TYPE_CHECKING:
    from collections.abc import Callable

    from ddpjob_trainer.snapshots.model.fencing import Fence, Owner
    from ddpjob_trainer.snapshots.model.staging import StagedState
    from ddpjob_trainer.snapshots.storage.snapshot_storage import SnapshotStorage

_log = logging.getLogger("ddpjob")


class AsyncWriter:
    """A writer for one storage."""

    def __init__(self, storage: SnapshotStorage) -> None:
        self._storage = storage
        self._memory = StagingBuffer()
        self._fit: tuple[int, MemoryPlan] | None = None  # bytes of a snapshot, and their plan
        self._background = Background("ddpjob-snapshot")
        self._copying = CopyJob()
        self._overlaps = False  # copies while training continues; the first copy is at once
        self._has_changed = False  # the state, by other hands than the optimizers'
        self._owner: Owner | None = None  # of the last snapshot
        self._saved: set[int] = set()  # steps that `_owner` has loaded, saved, or is saving
        self.survives_full_volume = False  # True: a full volume costs a snapshot only
        self.skipped = 0  # snapshots; a write was in progress, or the storage was unavailable
        self._late = 0  # snapshots skipped during a write
        self._reported = 0  # skipped snapshots already reported

    @property
    def is_busy(self) -> bool:
        """True while a snapshot is being written."""
        return self._background.is_busy

    def skip(self, step: int) -> None:
        """Count a skipped snapshot; this rank or another still writes an earlier one.

        Of these, log the first, the second, the fourth, and so on.
        """
        self.skipped += 1
        self._late += 1
        if self._late.bit_count() == 1:
            text = (
                "step %d is not saved: an earlier one is still being written (%d such steps so far)"
            )
            _log.warning(text, step, self._late)

    def repeats(self, step: int, owner: Owner, begin: int | None, *, wait: bool) -> bool:
        """Return whether `owner`, which resumed from step `begin`, has this step already.

        Raise SnapshotError for a step before `begin`: no later
        load would choose that snapshot.
        """
        if begin is not None and step < begin:
            raise SnapshotError(
                f"Step {step} is before step {begin}, from which this run resumed: the next start would "
                f"resume from step {begin} again. Continue to count from the step that load() returns."
            )
        if owner != self._owner or step not in self._saved:
            return False
        if wait:
            self.wait(owner)
        _log.warning(
            "step %d is not saved again: this run has loaded or saved it already, and a snapshot is "
            "never replaced; after a change of the state, save it as a later step",
            step,
        )
        return True

    def note_saved(self, owner: Owner, step: int) -> None:
        """Note that the storage has this step of `owner`, so that no other state gets its name."""
        if owner != self._owner:
            self._owner, self._saved = owner, set()
        self._saved.add(step)

    def save(
        self,
        step: int,
        content: StagedState,
        fence: Callable[[], Fence],
        *,
        owner: Owner,
        part: WriteAssignment,
        unchanged_tensors: set[int],
        wait: bool,
        report: Callable[..., None],
    ) -> bool:
        """Save a state, or one part, behind a fence; return False if the step is skipped.

        `fence` may raise FencedError or OSError. `unchanged_tensors` are addresses of tensors that
        stay unchanged until `wait_for_copy` returns. If the snapshot is durable, the writer calls
        `report(step, skipped=n, problem=text)`: `n` counts the skipped steps since the last report,
        and `problem` names a memory shortage. If the storage is unavailable, the writer logs a
        warning, and raises the error only with `wait`. Raise SnapshotError.
        """
        with contextlib.suppress(StorageUnavailableError):  # already logged
            self.wait(owner)
        publish: Callable[[], None] = partial(self._storage.write_part, step, content, part)
        if part.number == 0:
            try:
                mine = fence()
                self._storage.make_room(content.total_size, mine)
            except OSError as error:
                problem = self._problem(step, content.size, error)
                if wait or not isinstance(problem, StorageUnavailableError):
                    raise problem from error
                _log.warning("%s", problem)
                return False
            publish = partial(self._storage.commit, step, content, mine, part)
        copying = None if wait else self._copy(content, unchanged_tensors)
        shortage = self._fits(content).problem
        self.note_saved(owner, step)
        if part.number == 0:
            on_written = partial(
                report, step, skipped=self.skipped - self._reported, problem=shortage
            )
        else:
            on_written = partial(_log.debug, "part %d of step %d is written", part.number, step)
        work = partial(self._write, step, content.size, publish, on_written, self.skipped)
        if copying is None:
            work()
        else:
            self._copying = copying
            if not self._overlaps:
                copying.help()
            self._overlaps = not self._has_changed
            self._background.start(partial(self._copy_and_write, step, copying, work))
        return True

    def wait(self, owner: Owner) -> None:
        """Wait until all snapshots are durable. Raise SnapshotError if one cannot be saved.

        Raise FencedError only if `owner` made the save. Another owner resumes behind a new fence.
        """
        try:
            self._background.wait()
        except FencedError:
            if self._owner == owner:
                raise

    def finish(self) -> None:
        """Wait until no snapshot is being written; discard errors, which are already logged."""
        self._background.finish()

    def wait_for_copy(self) -> None:
        """Help with the copy and return once the copy is complete."""
        self._copying.help()

    def _copy(self, content: StagedState, unchanged_tensors: set[int]) -> CopyJob | None:
        """Return the job that copies the state; None if it must be written without a copy."""
        if not self._fits(content).copies:
            return None
        try:
            return content.copy(self._memory, unchanged_tensors)
        except NoCopyMemoryError as error:
            problem = f"{error} Training pauses while one is written."
            _log.warning("%s", problem)
            self._fit = content.tensors_size, MemoryPlan(copies=False, problem=problem)
            return None

    def _fits(self, content: StagedState) -> MemoryPlan:
        """Return the plan, computed once per size so that reports do not vary with memory use."""
        size = content.tensors_size
        if self._fit is None or self._fit[0] != size:
            found = plan_memory(size, host_memory.memory_headroom(), self._memory.size)
            self._fit = size, found
            if found.problem:
                _log.warning("%s", found.problem)
        return self._fit[1]

    def _copy_and_write(self, step: int, copying: CopyJob, work: Callable[[], None]) -> None:
        copier = threading.Thread(target=copying.work, name="ddpjob-copy")
        copier.start()
        try:
            work()
        except StateChangedError as error:
            self._drop(step, error)
        finally:
            copier.join()

    def _drop(self, step: int, error: StateChangedError) -> None:
        """Count a snapshot of a state that was changed during the copy; copy at once from now on."""
        self.skipped += 1
        if not self._has_changed:
            _log.warning("%s From now on save() returns after the copy.", error)
        else:
            _log.warning("step %d is not saved: the state was changed while it was copied", step)
        self._has_changed, self._overlaps = True, False

    def _write(
        self,
        step: int,
        size: int,
        publish: Callable[[], None],
        on_written: Callable[[], None],
        skipped: int,
    ) -> None:
        try:
            publish()
        except OSError as error:
            self._saved.discard(step)
            raise self._problem(step, size, error) from error
        except SnapshotError:
            self._saved.discard(step)
            raise
        except PartsMissingError:
            self._saved.discard(step)
            self.skipped += 1
            _log.warning("step %d is not saved: the workers have changed meanwhile", step)
            return
        on_written()
        self._reported = skipped

    def _problem(self, step: int, size: int, error: OSError) -> SnapshotError:
        where = self._storage.where
        cause, remedy = self._storage.files.explain_error(error, size)
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        if self._storage.files.is_transient(error) or (is_full and self.survives_full_volume):
            self.skipped += 1
            text = f"Step {step} is not saved in {where}: {cause}"
            return StorageUnavailableError(f"{text}. {remedy}" if is_full else text)
        earlier = []
        with contextlib.suppress(OSError):
            earlier = self._storage.complete()[:1]
        intact = "There is no earlier snapshot."
        if earlier:
            intact = f"The snapshot of step {earlier[0]} is intact."
        return SnapshotError(f"Cannot save step {step} in {where}: {cause}. {intact} {remedy}")
