"""The schedulers of a loop: stepped when a step counts, so that all ranks have equal ones.

A scheduler steps once per step or once per epoch. ReduceLROnPlateau steps once per metric.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from torch.optim.lr_scheduler import ReduceLROnPlateau

if TYPE_CHECKING:
    from ddpjob_trainer.data.position import DataPosition

_log = logging.getLogger("ddpjob")


class Schedule:
    """The schedulers, and the times at which they step."""

    def __init__(self, schedulers: Any, every: str, source: DataPosition | None) -> None:
        """Take one scheduler, several, or None. Raise ValueError if `every` does not fit."""
        if every not in ("step", "epoch"):
            raise ValueError(f'scheduler_every is {every!r}: use "step" or "epoch"')
        if every == "epoch" and source is None:
            raise ValueError('scheduler_every="epoch" needs a loader: steps alone have no epochs')
        several = schedulers if isinstance(schedulers, (list, tuple)) else [schedulers]
        self._schedulers = [each for each in several if each is not None]
        self._source = source if every == "epoch" else None
        self._epoch = 0
        self._expected: list[int] | None = None  # steps of each scheduler; None: not known
        self._has_stepped_on_metric = False

    @property
    def needs_metric(self) -> bool:
        """True if a scheduler follows a metric."""
        return any(map(_follows_metric, self._schedulers))

    def check_metric(self) -> None:
        """Raise RuntimeError if no scheduler follows a metric."""
        if not self.needs_metric:
            raise RuntimeError("loop.metric() is for ReduceLROnPlateau: Loop(..., scheduler=...)")

    def restart(self) -> None:
        """Accept the schedulers as they are: they may have another rank's state."""
        self._expected = None

    def begin(self) -> None:
        """Begin a step. Raise RuntimeError if the script has stepped a scheduler itself."""
        self._check()
        self._epoch = 0 if self._source is None else self._source.epoch

    def step(self, metric: float | None) -> None:
        """Step the schedulers at the end of a step, after the data's position has moved.

        Raise RuntimeError if the script has stepped one itself.
        """
        self._check()
        is_time = self._source is None or ends_epoch(self._source, self._epoch)
        for scheduler in self._schedulers:
            if not _follows_metric(scheduler):
                if is_time:
                    scheduler.step()
            elif metric is not None:
                scheduler.step(metric)
                self._has_stepped_on_metric = True
        self._expected = self._steps()

    def finish(self) -> None:
        """Warn if a scheduler never had a metric to follow."""
        if self.needs_metric and not self._has_stepped_on_metric:
            _log.warning(
                "ReduceLROnPlateau has not changed the learning rate, as the script has given no "
                "metric. Call loop.metric(value) after each evaluation"
            )

    def _steps(self) -> list[int]:
        return [getattr(each, "last_epoch", 0) for each in self._schedulers]

    def _check(self) -> None:
        if self._expected is None:
            self._expected = self._steps()
        elif self._expected != self._steps():
            raise RuntimeError(
                "the script calls scheduler.step(), and the Loop calls it, too. Remove the call from "
                'the script. For one step per epoch: Loop(..., scheduler_every="epoch"). For '
                "ReduceLROnPlateau: loop.metric(value)"
            )


def ends_epoch(source: DataPosition, epoch: int) -> bool:
    """Return whether the committed batch was the last one of this epoch; a Stream reads ahead."""
    if source.epoch == epoch and source.remaining(epoch + 1) is None:
        source.has_more(epoch + 1)
    return source.epoch != epoch


def is_last_of_epoch(source: DataPosition) -> bool:
    """Return whether the current batch is the last one of its epoch. Raise RuntimeError."""
    remaining = source.remaining(source.epoch + 1)
    if remaining is None:
        raise RuntimeError(
            "a Stream does not know the end of its epoch before the step. Ask after `with step:`"
        )
    return remaining == 1


def _follows_metric(scheduler: Any) -> bool:
    return isinstance(scheduler, ReduceLROnPlateau)
