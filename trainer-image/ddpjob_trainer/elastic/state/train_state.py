"""The training state of one process: its progress, and the lock around its changes.

A step counts once the optimizer has stepped. A step that breaks before that leaves no trace. A
thread must hold `changing` while it changes the state. If the main thread never returns from a
collective, another thread acquires that lock and keeps it. That thread dumps the state for the
process that replaces this one. This module does not depend on groups, agents or snapshots.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

import torch

from ddpjob_protocol.membership import MembershipId
from ddpjob_trainer.elastic.state.step_rollback import StepRollback
from ddpjob_trainer.tensors import rng_state, training_state
from ddpjob_trainer.tensors.device_copy import StreamMarks
from ddpjob_trainer.transfer.agreement import BEGINNING, StateVersion

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ddpjob_trainer.elastic.data_feed import DataFeed

CHANGE_SECONDS = 5.0  # seconds; a longer change of the state hangs


class TrainState:
    """A model with all state that belongs to its training."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        feed: DataFeed | None,
        extra: Any,
        scheduler: Any,
        scaler: Any,
    ) -> None:
        self.model = model
        self.extra = extra
        self.parts = {
            "optimizer": optimizer,
            "scheduler": scheduler,
            "scaler": scaler,
            "data": None if feed is None else feed.source,
        }
        self.done: int | None = None  # steps; None: no state yet
        self.done_in = BEGINNING  # the membership that did the last step
        self.membership = BEGINNING  # the membership that does the next step
        self.changing = threading.RLock()
        self._feed = feed
        self._optimizer = optimizer
        self._scheduler = scheduler
        self._one_of_each_device = {each.device: each for each in model.parameters()}.values()
        self._changed = StreamMarks(self._one_of_each_device)  # at the parameters' last change
        self.before_change: Callable[[], None] = lambda: None  # raises if no change is allowed
        self._attempt: StepRollback | None = None
        self._is_stepping = False
        optimizer.register_step_pre_hook(self._steps)
        optimizer.register_step_post_hook(self._stepped)

    @property
    def steps_done(self) -> int:
        """Steps done; the state must exist."""
        assert self.done is not None
        return self.done

    @property
    def progress(self) -> StateVersion | None:
        """Steps done and the membership of the last step; None without a state."""
        return None if self.done is None else StateVersion(self.done, self.done_in)

    # --- a step -----------------------------------------------------------------------------------

    def begin(self) -> StepRollback:
        """Begin a step."""
        self._attempt = StepRollback(self.model, self._optimizer, self.extra)
        return self._attempt

    def end(self) -> None:
        """End a step that raised an error of the script."""
        self._attempt = None
        if self._is_stepping:  # inside the optimizer's step
            self._is_stepping = False
            self.changing.release()

    def count(self) -> int:
        """Count the step and return the number of steps done."""
        assert self.done is not None
        with self.changing:
            if self._scheduler is not None:
                self._scheduler.step()
            if self._feed is not None:
                self._feed.commit()
            self.done += 1
            self.done_in = self.membership
            self._attempt = None
        return self.done

    def rollback(self) -> None:
        """Undo the step; the loop repeats it."""
        assert self._attempt is not None
        with self.changing:
            self._attempt.restore()
            self.end()

    def _steps(self, *_: Any) -> None:
        self.before_change()
        self.changing.acquire()
        self._is_stepping = True

    def _stepped(self, *_: Any) -> None:
        self._changed = StreamMarks(self._one_of_each_device)
        if self._attempt is not None:
            self._attempt.applied = True
        self._is_stepping = False
        self.changing.release()

    # --- the state --------------------------------------------------------------------------------

    def collect(self) -> dict[str, Any]:
        """Return the state, which shares memory, for processes with an older state or none."""
        own = None if self.extra is None else self.extra.state_dict()
        extra = {"own": own, "random": torch.get_rng_state()}
        return training_state.collect(self.model, extra, **self.parts)

    def restore(self, found: dict[str, Any]) -> None:
        """Restore the state of collect(), except random states. Raise StateMismatchError."""
        training_state.restore(found, self.model, **self.parts)
        if self.extra is not None:
            self.extra.load_state_dict(found["extra"]["own"])

    # --- from a stuck process to its replacement --------------------------------------------------

    def dump(self, path: Path) -> int | None:
        """Save the state from another thread and keep it locked; return the steps done.

        Return None if there is no state, or if a change of the state hangs. Raise OSError. The main
        thread is blocked in a collective, or before the next change.
        """
        if not self.changing.acquire(timeout=CHANGE_SECONDS) or self.done is None:
            return None
        with self._changed.copying():  # what a device has queued later may hang
            self._dump(path)
        return self.done

    def _dump(self, path: Path) -> None:
        if self._attempt is not None and self._attempt.applied:
            self.count()
        elif self._attempt is not None:
            self.rollback()
        left = {
            "steps": self.steps_done,
            "membership": str(self.done_in),
            "random": rng_state.get_state(),
            "state": self.collect(),
        }
        torch.save(left, path)

    def restore_dump(self, path: Path) -> None:
        """Load and delete the dump, if there is one. Raise StateMismatchError or OSError."""
        with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
            path.unlink()  # if the load fails, the next process starts without the dump
            left = torch.load(file, map_location="cpu", weights_only=False)
            self.restore(left["state"])
            rng_state.set_state(left["random"])
            self.done, self.done_in = left["steps"], MembershipId.parse(left["membership"])
