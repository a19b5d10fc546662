"""Writes snapshots while training goes on: what may not change is copied first, then it is written.

Parameters and the optimizer's state change in the optimizer's step only: they are copied while the
next one is computed, and the step waits for that; what has been copied is written meanwhile. One
snapshot at a time; who is due while one is written is left out and counted. Where memory is short
for a copy, training waits for all of it.
Knows nothing of ranks, nor of what belongs to a state.
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
    """Fills one place."""

    def __init__(self, place: SnapshotStorage) -> None:
        self._place = place
        self._memory = StagingBuffer()
        self._wanted = place.keep
        self._fit: tuple[int, MemoryPlan] | None = None  # for snapshots of so many bytes
        self._background = Background("ddpjob-snapshot")
        self._copying = CopyJob()
        self._owner: Owner | None = None  # of the last one
        self.skipped = 0  # were left out: one was being written, or the place was away
        self._told = 0  # of these

    @property
    def is_busy(self) -> bool:
        """Whether one is being written."""
        return self._background.is_busy

    def skip(self, step: int) -> None:
        """One is being written, here or by who writes another part of it."""
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
        stable_storages: set[int],
        wait: bool,
        report: Callable[..., None],
    ) -> bool:
        """Save a state behind a fence, or a part of it; False if it is left out.

        `fence` may raise FencedError and OSError. `stable_storages`: storages, by address, that do not
        change before `wait_for_copy` has returned. `report(step, skipped=n, problem=text)`: it is
        durable, so many were left out since the one before, and that makes it worse.
        That the place is away for a while is told, and raised only for who waits.
        Raises SnapshotError.
        """
        publish: Callable[[], None] = partial(self._place.write_part, step, content, part)
        if part.number == 0:
            try:
                mine = fence()
            except OSError as error:
                problem = self._problem(step, content.size, error)
                if wait or not isinstance(problem, StorageUnavailableError):
                    raise problem from error
                _log.warning("%s", problem)
                return False
            publish = partial(self._place.commit, step, content, mine, part)
        with contextlib.suppress(StorageUnavailableError):  # it has been told
            self.wait(owner)
        self._owner = owner
        fits = self._fits(content)
        if part.number == 0:
            told = partial(report, step, skipped=self.skipped - self._told, problem=fits.problem)
        else:
            told = partial(_log.debug, "part %d of step %d is written", part.number, step)
        work = partial(self._write, step, content.size, publish, told, self.skipped)
        if wait or not fits.copies:
            work()
        else:
            content.allocate(self._memory)
            self._copying = content.copy(stable_storages)
            self._background.start(partial(self._copy_and_write, self._copying, work))
        return True

    def wait(self, owner: Owner) -> None:
        """Returns when all is durable. Raises SnapshotError if it cannot be.

        FencedError only while `owner` is who saved: it has gone on by new right otherwise.
        """
        try:
            self._background.wait()
        except FencedError:
            if self._owner == owner:
                raise

    def finish(self) -> None:
        """Returns when nothing is being written; what went wrong has been logged."""
        self._background.finish()

    def wait_for_copy(self) -> None:
        """Returns when nothing is left to be copied, and helps with it."""
        self._copying.help()

    def _fits(self, content: StagedState) -> MemoryPlan:
        """Found out once: what is told must not change with what training happens to use."""
        size = content.tensors_size
        if self._fit is None or self._fit[0] != size:
            found = plan_memory(
                size, self._wanted, host_memory.memory_headroom(),
                whole=content.whole_size, copied=self._memory.size, held=self._place.held_in_memory(),
            )  # fmt: skip
            self._fit, self._place.keep = (size, found), found.keep
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
        told: Callable[[], None],
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
        told()
        self._told = skipped

    def _problem(self, step: int, size: int, error: OSError) -> SnapshotError:
        where = self._place.where
        cause, remedy = self._place.explain_error(error, size)
        if self._place.is_transient(error):
            self.skipped += 1
            return StorageUnavailableError(f"Step {step} is not saved in {where}: {cause}")
        earlier = []
        with contextlib.suppress(OSError):
            earlier = self._place.complete()[:1]
        intact = "There is no earlier snapshot."
        if earlier:
            intact = f"The snapshot of step {earlier[0]} is intact."
        return SnapshotError(f"Cannot save step {step} in {where}: {cause}. {intact} {remedy}")
