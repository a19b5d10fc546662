"""The training state of one process: its progress, and the lock around its changes.

A step counts once the optimizer has stepped, or at the end of its body if the body changes the state
in other ways, too. A step that breaks before that leaves no trace, or no state at all: this process
then receives the state of another one. A thread must hold `changing` while it changes the state. If
the main thread never returns from a collective, another thread acquires that lock and keeps it.
That thread dumps the state for the process that replaces this one. This module does not depend on
groups, agents or snapshots.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import TYPE_CHECKING, Any

import torch

from ddpjob_protocol.messages.membership import MembershipId
from ddpjob_trainer.elastic.control.schedule import Schedule
from ddpjob_trainer.elastic.state import left_out
from ddpjob_trainer.elastic.state.extra_backup import ExtraBackup
from ddpjob_trainer.elastic.state.leftover_gradients import LeftoverGradients
from ddpjob_trainer.elastic.state.optimizer_check import check_optimizers
from ddpjob_trainer.elastic.state.state_copy import StateCopy
from ddpjob_trainer.elastic.state.step_rollback import StepRollback
from ddpjob_trainer.elastic.state.weight_changes import WeightChanges
from ddpjob_trainer.tensors import rng_state, training_state
from ddpjob_trainer.tensors.device_copy import StreamMarks
from ddpjob_trainer.transfer.agreement import BEGINNING, StateVersion

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from ddpjob_trainer.elastic.data_feed import DataFeed

_log = logging.getLogger("ddpjob")

CHANGE_SECONDS = 5.0  # seconds; a longer change of the state hangs


class TrainState:
    """A model with all state that belongs to its training."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
        feed: DataFeed | None,
        extra: Any,
        scheduler: Any,
        scaler: Any,
        scheduler_every: str = "step",
    ) -> None:
        """Hold the state. Raise TypeError or ValueError if the optimizers do not fit the model."""
        self.model = model
        self.optimizers = training_state.optimizers_of(optimizer)
        check_optimizers(model, optimizer, self.optimizers)
        self.extra = extra
        self.parts = {
            "optimizer": optimizer,
            "scheduler": scheduler,
            "scaler": scaler,
            "data": None if feed is None else feed.source,
        }
        self._extra_backup = None if extra is None else ExtraBackup(extra)
        self.done: int | None = None  # steps; None: no state yet
        self.done_in = BEGINNING  # the membership that did the last step
        self.membership = BEGINNING  # the membership that does the next step
        self.changing = threading.RLock()
        self._feed = feed
        source = None if feed is None else feed.source
        self.schedule = Schedule(scheduler, scheduler_every, source)
        self.metric: float | None = None  # for the scheduler, at the end of the step in progress
        self._scaler = scaler
        self._parameters = [*model.parameters()]
        self._one_of_each_device = {each.device: each for each in model.parameters()}.values()
        self._changed = StreamMarks(self._one_of_each_device)  # at the parameters' last change
        self.before_change: Callable[[], None] = lambda: None  # raises if no change is allowed
        self._attempt: StepRollback | None = None
        self._holds = 0  # of `changing`, by optimizers' steps
        self._copy = StateCopy(self._parameters, self.optimizers)
        self._leftovers = LeftoverGradients(self.optimizers)
        self._has_counted = False  # a body, in this process
        self._is_known = False  # what bodies change: this process or another one has counted one
        self._spoilt_by = ""  # empty: the model has no part of another state
        self._has_closure = False  # an optimizer calls backward within its step
        self.changes_weights = False  # other code than an optimizer's step does, or several steps
        for each in self.optimizers:
            each.register_step_pre_hook(self._steps)
            each.register_step_post_hook(self._stepped)

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
        self._spoilt_by = ""
        self.schedule.begin()
        self._leftovers.drop_used()
        exact = not self._has_counted  # once: it finds changes through `.data`
        changes = WeightChanges(self._parameters, self.optimizers, exact=exact)
        whole = self.changes_weights or self._has_closure or len(self.optimizers) > 1
        self._attempt = StepRollback(
            self.model, self.optimizers, self._scaler, self._extra_backup, changes, whole=whole
        )
        if whole:
            self._attempt.keep_copy(self._copy)
        return self._attempt

    def end(self) -> None:
        """End a step that raised an error of the script."""
        if self._attempt is not None:
            self._attempt.changes.close()
        self._attempt = None
        while self._holds:  # inside the optimizer's step
            self._holds -= 1
            self.changing.release()

    def count(self, *, is_cut_off: bool = False) -> int:
        """Count the step and return the number of steps done.

        A body that `is_cut_off` may miss the update of the user's own state. Then the state of a
        rank with the update is newer than this one.
        """
        assert self.done is not None
        with self.changing:
            if self._attempt is not None:
                self._settle(self.done, self._attempt)
                if is_cut_off:
                    self._attempt.flags.restore(applied=True)
            if self._feed is not None:
                self._feed.commit()
            self.schedule.step(self.metric)
            self.done += 1
            self.done_in = self.membership
            if is_cut_off and self._extra_backup is not None and self._extra_backup.misses_update:
                self.done_in = BEGINNING
                _log.warning(
                    "Step %d was cut off after optimizer.step() and before the update of `extra`. The "
                    "state of a rank that has updated it counts, if there is one. Update `extra` directly "
                    "after optimizer.step(), before other collectives.",
                    self.done,
                )
            self.end()
        return self.done

    def rollback(self) -> None:
        """Undo the step, and the loop repeats it; or drop the state if it cannot be undone."""
        assert self._attempt is not None
        with self.changing:
            if not self._attempt.restore():
                self.spoil("a step was cut off after a part of its changes of the weights")
            self._leftovers.forget()
            self.end()

    @property
    def is_applied(self) -> bool:
        """True if the current step counts, whatever happens in the rest of its body.

        In the first body it is unknown what the rest does.
        """
        return self._attempt is not None and self._is_known and self._attempt.applied

    def late_error(self) -> Exception | None:
        """Return why the changes of a body that has ended without an error may be wrong, or None."""
        try:
            if self.changes_weights:
                self.before_change()
        except Exception as error:  # noqa: BLE001 - the loop decides
            return error
        return None

    def check_untrained(self) -> None:
        """Raise RuntimeError if this process cannot give its state to processes without one."""
        if self._spoilt_by:
            raise RuntimeError(f"{self._spoilt_by}. No other state is left: training starts over")

    def spoil(self, why: str) -> None:
        """Give up the state: from now on the model may have a part of another one."""
        self.done, self._spoilt_by = None, why

    def drop_gradients(self) -> None:
        """Drop all gradients, but those that the script may not add to."""
        if not self._leftovers.are_watched:
            for each in self.optimizers:
                each.zero_grad(set_to_none=True)

    def _settle(self, step: int, attempt: StepRollback) -> None:
        """Learn from a body that has ended how it changes the state."""
        changes = attempt.changes
        changes.compare()
        self._has_counted = self._is_known = True
        is_scaled = attempt.scaler is not None and attempt.scaler.is_updated
        self._leftovers.settle(step, self.optimizers if is_scaled else changes.stepped)
        is_repeated = len(changes.stepped) > len(set(changes.stepped))
        if not self.changes_weights and (changes.by_other_code or is_repeated):
            self.changes_weights = True
            _log.warning(
                "The body of the step changes the weights not only by one optimizer.step(). So from now on "
                "each step begins with a copy of the weights and of the optimizer's state (%d MB).",
                training_state.is_on_all(self.model, self.optimizers) // 10**6,
            )

    def _steps(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], options: dict[str, Any]
    ) -> None:
        self._leftovers.check(optimizer)
        self.before_change()
        self.changing.acquire()
        self._holds += 1
        if self._attempt is None:
            return
        self._attempt.changes.before_step()
        has_closure = options.get("closure") is not None or any(map(callable, args[1:]))
        if has_closure and self._attempt.changes.is_none:
            self._has_closure = True
            self._attempt.keep_copy(self._copy)
        if self._extra_backup is not None:
            self._extra_backup.on_optimizer_step()

    def _stepped(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._changed = StreamMarks(self._one_of_each_device)
        if self._attempt is not None:
            self._attempt.changes.after_step(optimizer)
            self._attempt.flags.note_applied()
        self._holds -= 1
        self.changing.release()

    # --- the state --------------------------------------------------------------------------------

    def collect(self) -> dict[str, Any]:
        """Return the state, which shares memory, for processes with an older state or none."""
        own = None if self.extra is None else self.extra.state_dict()
        extra = {
            "own": own,
            "random": torch.get_rng_state(),
            "is_known": self._is_known,
            "changes_weights": self.changes_weights,
            "left_out": left_out.collect(self.model),
        }
        return training_state.collect(self.model, extra, **self.parts)

    def restore(self, found: dict[str, Any]) -> None:
        """Restore the state of collect(), except random states. Raise StateMismatchError."""
        training_state.restore(found, self.model, **self.parts)
        left_out.restore(self.model, found["extra"]["left_out"])
        self.changes_weights |= found["extra"]["changes_weights"]
        self._is_known |= found["extra"]["is_known"]
        training_state.restore_extra(found["extra"]["own"], self.extra)

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
        if self.is_applied:
            self.count(is_cut_off=True)
        elif self._attempt is not None:
            self.rollback()
        if self.progress is None:  # the step could not be undone
            return
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
