"""The snapshots of a loop: saved by the ranks of one group, loaded if no process has newer state.

Without a storage for snapshots, nothing is saved or loaded.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ddpjob_trainer.errors import FencedError, SnapshotError
from ddpjob_trainer.snapshots.first_check import check_savable
from ddpjob_trainer.tensors import training_state
from ddpjob_trainer.transfer.agreement import BEGINNING

if TYPE_CHECKING:
    from ddpjob_trainer.elastic.group.group_breaks import GroupBreaks
    from ddpjob_trainer.elastic.state.train_state import TrainState
    from ddpjob_trainer.snapshots.manager import Snapshots

_log = logging.getLogger("ddpjob")


class LiveSnapshots:
    """The snapshots of one training state."""

    def __init__(
        self, snapshots: Snapshots | None, training: TrainState, breaks: GroupBreaks
    ) -> None:
        self._snapshots = snapshots
        if snapshots is not None:
            snapshots.serve_loop()
        self._training = training
        self._breaks = breaks
        self._is_checked = False  # the state after the first step
        self._saved: int | None = None  # step of the snapshot that this group saved or loaded

    def check(self) -> None:
        """Raise SnapshotError, with the path, if the state has no form in a snapshot or message."""
        extra = self._training.extra
        own = None if extra is None else extra.state_dict()
        check_savable(self._training.model, own, self._training.parts, in_live_mode=True)

    def save_if_due(self, step: int) -> bool:
        """Save the state of this step if a snapshot is due; return whether it is.

        The optimizer creates its state in the first step, so check() runs once more here. Raise
        SnapshotError.
        """
        if not self._is_checked:
            self.check()
            self._is_checked = True
        if self._snapshots is None or not self._snapshots.due(step):
            return False
        self._save(self._snapshots, step, wait=False)
        return True

    def save_before_exit(self) -> None:
        """Save the state, if there is one, and return once it is durable. Raise SnapshotError."""
        if self._snapshots is not None and self._training.done is not None:
            self._save(self._snapshots, self._training.done, wait=True)

    def _save(self, snapshots: Snapshots, step: int, *, wait: bool) -> None:
        extra = self._training.extra
        try:
            if self._saved == step:
                snapshots.wait()
                return
            snapshots.discover_storage_group()
            is_saved = snapshots.save(
                step,
                wait=wait,
                model=self._training.model,
                extra=None if extra is None else extra.state_dict(),
                **self._training.parts,
            )
        except FencedError as error:
            if not self._breaks.has_agent:
                raise
            _log.warning("%s", error)
            self._breaks.await_assignment(error)
        except SnapshotError:
            raise
        except Exception as error:  # noqa: BLE001 - raised again if it is not a break
            self._breaks.handle(error)
        else:
            self._saved = step if is_saved else self._saved

    def forget(self) -> None:
        """Forget the last save, because a snapshot that a left group writes may stay incomplete."""
        self._saved = None

    def load(self) -> bool:
        """Load the newest snapshot; return False if there is none."""
        if self._snapshots is None:
            return False
        with self._training.changing:
            try:
                loaded = self._snapshots.load(model=self._training.model, **self._training.parts)
            except BaseException:
                if self._snapshots.is_half_loaded:
                    self._training.done = None
                raise
            if loaded is None:
                return False
            try:
                training_state.restore_extra(loaded.extra, self._training.extra)
            except training_state.StateMismatchError as error:
                raise SnapshotError(
                    f"The script does not fit the snapshot of step {loaded.step}: {error}"
                ) from error
            self._training.done = self._saved = loaded.step
            self._training.done_in = BEGINNING
            return True

    def wait_for_copy(self) -> None:
        """Wait until the model and the optimizer may change."""
        if self._snapshots is not None:
            self._snapshots.wait_for_copy()

    def resume_from(self, step: int) -> None:
        """Record that this membership resumes from `step` without a load."""
        if self._snapshots is not None:
            self._snapshots.resume_from(step)
