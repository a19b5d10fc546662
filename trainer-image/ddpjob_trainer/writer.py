"""Writes snapshots while training goes on: what may not change is copied first, then it is written.

Parameters and the optimizer's state change in the optimizer's step only: they are copied while the
next one is computed, and the step waits for that. One snapshot at a time; who is due while one is
written is left out and counted.
Knows nothing of ranks, nor of what belongs to a state.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

from ddpjob_trainer.background import Background
from ddpjob_trainer.content import Content
from ddpjob_trainer.errors import AwayError, OvertakenError, SnapshotError
from ddpjob_trainer.image import Memory

if TYPE_CHECKING:
    from collections.abc import Callable

    from ddpjob_trainer.fences import Fence, Owner
    from ddpjob_trainer.place import Place

_log = logging.getLogger("ddpjob")


class Writer:
    """Fills one place."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._memory = Memory()
        self._background = Background("ddpjob-snapshot")
        self._copied = threading.Event()
        self._copied.set()
        self._fence: Fence | None = None  # of the last one
        self.skipped = 0  # were left out: one was being written, or the place was away
        self._told = 0  # of these

    def save(
        self,
        step: int,
        what: dict[str, Any],
        fence: Callable[[], Fence],
        *,
        still: set[int],
        wait: bool,
        report: Callable[..., None],
    ) -> bool:
        """Save a state behind a fence; False if it is left out. Raises SnapshotError.

        `fence` may raise OvertakenError and OSError. `still`: storages, by address, that do not
        change before `let_change` has returned. `report(step, skipped=n)`: it is
        durable, and so many were left out since the one before.
        That the place is away for a while is told, and raised only for who waits.
        """
        if self._background.is_busy and not wait:
            self.skipped += 1
            _log.warning("step %d is not saved: an earlier one is still being written", step)
            return False
        content = Content(step, what)
        try:
            mine = fence()
        except OSError as error:
            trouble = self._trouble(step, content.size, error)
            if wait or not isinstance(trouble, AwayError):
                raise trouble from error
            _log.warning("%s", trouble)
            return False
        with contextlib.suppress(AwayError):  # it has been told
            self.wait(mine.owner)
        self._fence = mine
        content.place(self._memory)
        content.copy(still)
        work = partial(self._finish, step, content, mine, still, report, self.skipped)
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
        content: Content,
        fence: Fence,
        still: set[int],
        report: Callable[..., None],
        skipped: int,
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
            self._place.publish(step, content, fence)
        except OSError as error:
            raise self._trouble(step, content.size, error) from error
        report(step, skipped=skipped - self._told)
        self._told = skipped

    def _trouble(self, step: int, size: int, error: OSError) -> SnapshotError:
        where = self._place.where
        cause, remedy = self._place.explain(error, size)
        if self._place.is_away(error):
            self.skipped += 1
            return AwayError(f"Step {step} is not saved in {where}: {cause}")
        earlier = []
        with contextlib.suppress(OSError):
            earlier = self._place.complete()[:1]
        intact = "There is no earlier snapshot."
        if earlier:
            intact = f"The snapshot of step {earlier[0]} is intact."
        return SnapshotError(f"Cannot save step {step} in {where}: {cause}. {intact} {remedy}")
