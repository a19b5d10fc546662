"""A writer that saves snapshots while training continues: copy the state, then write the copy.

Parameters and the optimizer's state change only in the optimizer's step. So the writer copies them
while the next step is computed, and the optimizer's step waits for the copy. Copied data is written
during the rest of the copy. The writer writes one snapshot at a time. If a snapshot is due during a
write, the writer skips and counts that snapshot. If memory is too short for a copy, training waits
for the whole write. This module does not depend on ranks or on the contents of a state.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from functools import partial
from typing import TYPE_CHECKING

from ddpjob_trainer import host_memory
from ddpjob_trainer.errors import FencedError, SnapshotError, StorageUnavailableError
from ddpjob_trainer.snapshots.background import Background
from ddpjob_trainer.snapshots.memory_budget import MemoryPlan, plan_memory
from ddpjob_trainer.snapshots.model.write_plan import PartsMissingError, WriteAssignment
from ddpjob_trainer.tensors.copy_jobs import CopyJob
from ddpjob_trainer.tensors.safetensors_writer import StagingBuffer

if TYPE_CHECKING:
    from collections.abc import Callable

    from ddpjob_trainer.snapshots.model.fencing import Fence, Owner
    from ddpjob_trainer.snapshots.model.staging import StagedState
    from ddpjob_trainer.snapshots.storage.base import SnapshotStorage

_log = logging.getLogger("ddpjob")


class AsyncWriter:
    """A writer for one storage."""

    def __init__(self, storage: SnapshotStorage) -> None:
        self._storage = storage
        self._memory = StagingBuffer()
        self._fit: tuple[int, MemoryPlan] | None = None  # bytes of a snapshot, and their plan
        self._background = Background("ddpjob-snapshot")
        self._copying = CopyJob()
        self._owner: Owner | None = None  # of the last snapshot
        self.skipped = 0  # snapshots; a write was in progress, or the storage was unavailable
        self._reported = 0  # skipped snapshots already reported

    @property
    def is_busy(self) -> bool:
        """True while a snapshot is being written."""
        return self._background.is_busy

    def skip(self, step: int) -> None:
        """Count and log a skipped snapshot; this rank or another still writes an earlier one."""
        self.skipped += 1
        _log.warning("step %d is not saved: an earlier one is still being written", step)

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
        publish: Callable[[], None] = partial(self._storage.write_part, step, content, part)
        if part.number == 0:
            try:
                mine = fence()
            except OSError as error:
                problem = self._problem(step, content.size, error)
                if wait or not isinstance(problem, StorageUnavailableError):
                    raise problem from error
                _log.warning("%s", problem)
                return False
            publish = partial(self._storage.commit, step, content, mine, part)
        with contextlib.suppress(StorageUnavailableError):  # already logged
            self.wait(owner)
        self._owner = owner
        fits = self._fits(content)
        if part.number == 0:
            on_written = partial(
                report, step, skipped=self.skipped - self._reported, problem=fits.problem
            )
        else:
            on_written = partial(_log.debug, "part %d of step %d is written", part.number, step)
        work = partial(self._write, step, content.size, publish, on_written, self.skipped)
        if wait or not fits.copies:
            work()
        else:
            self._copying = content.copy(self._memory, unchanged_tensors)
            self._background.start(partial(self._copy_and_write, self._copying, work))
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

    def _fits(self, content: StagedState) -> MemoryPlan:
        """Return the plan, computed once per size so that reports do not vary with memory use."""
        size = content.tensors_size
        if self._fit is None or self._fit[0] != size:
            found = plan_memory(size, host_memory.memory_headroom(), self._memory.size)
            self._fit = size, found
            if found.problem:
                _log.warning("%s", found.problem)
        return self._fit[1]

    @staticmethod
    def _copy_and_write(copying: CopyJob, work: Callable[[], None]) -> None:
        copier = threading.Thread(target=copying.work, name="ddpjob-copy")
        copier.start()
        try:
            work()
        finally:
            copier.join()
        copying.finish()

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
            raise self._problem(step, size, error) from error
        except PartsMissingError:
            self.skipped += 1
            _log.warning("step %d is not saved: the workers have changed meanwhile", step)
            return
        on_written()
        self._reported = skipped

    def _problem(self, step: int, size: int, error: OSError) -> SnapshotError:
        where = self._storage.where
        cause, remedy = self._storage.explain_error(error, size)
        if self._storage.is_transient(error):
            self.skipped += 1
            return StorageUnavailableError(f"Step {step} is not saved in {where}: {cause}")
        earlier = []
        with contextlib.suppress(OSError):
            earlier = self._storage.complete()[:1]
        intact = "There is no earlier snapshot."
        if earlier:
            intact = f"The snapshot of step {earlier[0]} is intact."
        return SnapshotError(f"Cannot save step {step} in {where}: {cause}. {intact} {remedy}")
