"""Writes snapshots while training goes on: what may not change is copied first, then it is written.

Parameters and the optimizer's state change in the optimizer's step only: they are copied while the
next one is computed, and the step waits for that. One snapshot at a time; who is due while one is
written is left out and counted.
Knows nothing of ranks, nor of what belongs to a state.
"""

from __future__ import annotations

import errno
import logging
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

from ddpjob_trainer import folder
from ddpjob_trainer.background import Background
from ddpjob_trainer.errors import OvertakenError, SnapshotError
from ddpjob_trainer.image import Memory

if TYPE_CHECKING:
    from collections.abc import Callable

    from ddpjob_trainer.fences import Fence, Owner
    from ddpjob_trainer.shelf import Shelf

_log = logging.getLogger("ddpjob")


class Writer:
    """Fills one shelf."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._memory = Memory()
        self._background = Background("ddpjob-snapshot")
        self._copied = threading.Event()
        self._copied.set()
        self._fence: Fence | None = None  # of the last one
        self.skipped = 0  # snapshots that were left out because one was being written

    def save(
        self,
        step: int,
        what: dict[str, Any],
        fence: Callable[[], Fence],
        *,
        still: set[int],
        wait: bool,
        report: Callable[[int], None],
    ) -> bool:
        """Save a state behind a fence; False if it is left out. Raises SnapshotError.

        `fence` may raise OvertakenError and OSError. `still`: storages, by address, that do not
        change before `let_change` has returned. `report(step)`: it is durable.
        """
        if self._background.is_busy and not wait:
            self.skipped += 1
            _log.warning("step %d is not saved: an earlier one is still being written", step)
            return False
        content = folder.Content(step, what)
        try:
            mine = fence()
        except OSError as error:
            raise SnapshotError(self._cannot_write(step, content.size, error)) from error
        self.wait(mine.owner)
        self._fence = mine
        content.place(self._memory)
        content.copy(still)
        work = partial(self._finish, step, content, mine, still, report)
        if wait:
            work()
        else:
            self._copied.clear()
            self._background.start(work)
        return True

    def wait(self, owner: Owner) -> None:
        """Returns when all is durable. Raises SnapshotError if it cannot be.

        OvertakenError only while `owner` is who saved: it has gone on by new right otherwise.
        """
        try:
            self._background.wait()
        except OvertakenError:
            if self._fence is not None and self._fence.owner == owner:
                raise

    def settle(self) -> None:
        """Returns when nothing is being written; what went wrong has been logged."""
        self._background.settle()

    def let_change(self) -> None:
        """Returns when nothing is left to be copied."""
        self._copied.wait()

    def _finish(
        self,
        step: int,
        content: folder.Content,
        fence: Fence,
        still: set[int],
        report: Callable[[int], None],
    ) -> None:
        try:
            is_whole = content.copy(still, inside=True)
        finally:
            self._copied.set()
        if not is_whole:
            raise SnapshotError(
                f"Step {step} is not saved: the model or the optimizer's state was changed while "
                "it was copied, and not by the optimizer's step. Change it before save(), or save "
                "with wait=True."
            )
        try:
            self._shelf.publish(step, content, fence)
        except OSError as error:
            raise SnapshotError(self._cannot_write(step, content.size, error)) from error
        report(step)

    def _cannot_write(self, step: int, size: int, error: OSError) -> str:
        cause, remedy = str(error), "Check the volume and its permissions."
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            cause = f"it is full, and {size:,} bytes are needed"
            remedy = "Free space there, enlarge the volume, or keep fewer snapshots."
        earlier = self._shelf.complete()[:1] if self._shelf.directory.is_dir() else []
        intact = "There is no earlier snapshot."
        if earlier:
            intact = f"The snapshot of step {earlier[0]} is intact."
        where = self._shelf.directory
        return f"Cannot save step {step} in {where}: {cause}. {intact} {remedy}"
