"""What is trained, as one process holds it: how far it is, and who may change it.

A step counts once the optimizer has stepped; one that was broken off before leaves no trace. Who
changes the state holds `changing`. Where the main thread never comes back from a collective,
another one takes that lock for good, and leaves the state to the process that comes in its place.
Knows nothing of groups, agents and snapshots.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

import torch

from ddpjob_protocol.membership import MembershipId
from ddpjob_trainer.elastic.step_rollback import StepRollback
from ddpjob_trainer.tensors import rng_state, training_state
from ddpjob_trainer.transfer.agreement import BEGINNING, StateVersion

if TYPE_CHECKING:
    from pathlib import Path

    from ddpjob_trainer.elastic.data_feed import DataFeed

CHANGE_SECONDS = 5.0  # a change of the state in progress is over by then, or hangs


class TrainState:
    """A model with all that belongs to its training."""

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
        self.done_in = BEGINNING  # the membership that did the last of them
        self.membership = BEGINNING  # that does the next one
        self.changing = threading.RLock()
        self._feed = feed
        self._optimizer = optimizer
        self._scheduler = scheduler
        self._attempt: StepRollback | None = None
        self._is_stepping = False
        optimizer.register_step_pre_hook(self._steps)
        optimizer.register_step_post_hook(self._stepped)

    @property
    def progress(self) -> StateVersion | None:
        """How far it is, if it is anything yet."""
        return None if self.done is None else StateVersion(self.done, self.done_in)

    # --- a step -----------------------------------------------------------------------------------

    def begin(self) -> StepRollback:
        """A step begins."""
        self._attempt = StepRollback(self.model, self._optimizer, self.extra)
        return self._attempt

    def end(self) -> None:
        """It ended in an error of the script."""
        self._attempt = None
        if self._is_stepping:  # in the midst of the optimizer's
            self._is_stepping = False
            self.changing.release()

    def count(self) -> int:
        """It counts; how many are done."""
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
        """It does not count, and comes again."""
        assert self._attempt is not None
        with self.changing:
            self._attempt.restore()
            self.end()

    def _steps(self, *_: Any) -> None:
        self.changing.acquire()
        self._is_stepping = True

    def _stepped(self, *_: Any) -> None:
        if self._attempt is not None:
            self._attempt.applied = True
        self._is_stepping = False
        self.changing.release()

    # --- the state --------------------------------------------------------------------------------

    def collect(self) -> dict[str, Any]:
        """For processes that have an older one, or none; it shares memory with this one."""
        own = None if self.extra is None else self.extra.state_dict()
        extra = {"own": own, "random": torch.get_rng_state()}
        return training_state.collect(self.model, extra, **self.parts)

    def restore(self, found: dict[str, Any]) -> None:
        """Inverse of collect(), but for random states. Raises StateMismatchError."""
        training_state.restore(found, self.model, **self.parts)
        if self.extra is not None:
            self.extra.load_state_dict(found["extra"]["own"])

    # --- from a process that is stuck to the one in its place ---------------------------------------

    def dump(self, path: Path) -> int | None:
        """Save it, from another thread, and change it no more; steps done, None if it cannot be.

        Raises OSError. The main thread stands in a collective, or before the next change.
        """
        if not self.changing.acquire(timeout=CHANGE_SECONDS) or self.done is None:
            return None
        if self._attempt is not None and self._attempt.applied:
            self.count()
        elif self._attempt is not None:
            self.rollback()
        left = {
            "steps": self.done,
            "membership": str(self.done_in),
            "random": rng_state.get_state(),
            "state": self.collect(),
        }
        torch.save(left, path)
        return self.done

    def restore_dump(self, path: Path) -> None:
        """Go on with what was left there, if anything was. Raises StateMismatchError and OSError."""
        with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
            path.unlink()  # whoever fails with it is followed by one without
            left = torch.load(file, map_location="cpu", weights_only=False)
            self.restore(left["state"])
            rng_state.set_state(left["random"])
            self.done, self.done_in = left["steps"], MembershipId.parse(left["membership"])
