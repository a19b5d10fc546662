"""A state that cannot be saved is refused before training, instead of at the first snapshot.

The optimizer creates its state in its first step, so the state is checked once more after it. Every
rank checks: all raise, or none. After a load that has failed, training is refused until a load succeeds.
This module does not depend on storages.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from ddpjob_trainer.errors import SnapshotError
from ddpjob_trainer.snapshots.model.flat_state import FlatState
from ddpjob_trainer.snapshots.replicas import Replicas
from ddpjob_trainer.snapshots.sharded.layout import is_sharded
from ddpjob_trainer.snapshots.sharded.state import ShardedState
from ddpjob_trainer.snapshots.unsaved import UnsavedParts
from ddpjob_trainer.tensors import supported, training_state

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from ddpjob_trainer.snapshots.own_memory import OwnMemory


def check_savable(
    model: torch.nn.Module, extra: Any, parts: dict[str, Any], *, in_live_mode: bool = False
) -> None:
    """Raise SnapshotError, with the path, if a snapshot cannot hold a value of the state."""
    if in_live_mode:
        supported.check_not_sharded(model)
    supported.check_supported(model, parts.get("optimizer"))
    kind = ShardedState if is_sharded(model) else FlatState
    kind(0, training_state.collect(model, extra, **parts))


class FirstCheck:
    """The check before the first step, and the one after it."""

    def __init__(self, *, check_replicas: bool) -> None:
        self.replicas = Replicas(enabled=check_replicas)
        self._is_done = False
        self._again: tuple[torch.nn.Module, dict[str, Any]] | None = None
        self._unsaved = UnsavedParts()
        self._has_failed = False  # the last load has failed
        self.is_half_loaded = False  # and a load may have overwritten a part of the model

    @contextlib.contextmanager
    def loading(self, own: OwnMemory) -> Iterator[None]:
        """Record whether a load, in this context, fails, and if so, what it leaves in the model."""
        self._has_failed = True
        try:
            yield
        except BaseException:
            self.is_half_loaded |= own.is_overwritten
            raise
        self._has_failed = False
        if own.is_overwritten:
            self.is_half_loaded = False
        self._refuse_failed_load()

    def note_received(self) -> None:
        """Record that the model holds the whole state of another process."""
        self._has_failed = self.is_half_loaded = False

    def _refuse_failed_load(self) -> None:
        if self._has_failed or self.is_half_loaded:
            raise SnapshotError(
                "load() has failed: the model has no state to resume from, or a part of a snapshot. "
                "Training from it would replace the good snapshots. Repeat load(), or end the script. "
                "To start over, build the model again, and save by Snapshots(DIRECTORY) in another "
                "directory."
            )

    def before_load(self, model: torch.nn.Module, parts: dict[str, Any]) -> None:
        """Check the state, once. Raise SnapshotError."""
        self._unsaved.give(parts["optimizer"])
        self._check_once(model, None, parts)

    def before_save(
        self, step: int, model: torch.nn.Module, extra: Any, parts: dict[str, Any]
    ) -> None:
        """Check the state, once, and at each save that it is whole and equal on all ranks.

        Raise SnapshotError.
        """
        self._refuse_failed_load()
        self.replicas.record(step, model)
        self.replicas.compare()
        self._check_once(model, extra, parts)
        self._unsaved.give(parts["optimizer"])
        self._unsaved.check(model, extra, parts)

    def _check_once(self, model: torch.nn.Module, extra: Any, parts: dict[str, Any]) -> None:
        if not self._is_done:
            check_savable(model, extra, parts)
            self._is_done, self._again = True, (model, parts)

    def after_step(self, step: int) -> None:
        """Check the state that was checked before, again, once. Raise SnapshotError."""
        self._refuse_failed_load()
        if self._again is not None:
            (model, parts), self._again = self._again, None
            check_savable(model, None, parts)
            self.replicas.record(step, model)
        self.replicas.compare()
