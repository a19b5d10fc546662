"""The signals of a script to all ranks: to stop, and the metric that a scheduler follows.

A script gives a signal on any rank, within a step or between two. The ranks add their signals up
before the next step, in one small collective. The sums take effect in the step after that. Ranks
that form another group exchange first what some of them know. A signal whose sum got lost is sent
again. The collective ends before the step begins, so that the gradients never share the connections
with it (ADR 0045).
"""

from __future__ import annotations

import math
import time
from typing import NamedTuple

import torch
from torch import distributed

from ddpjob_trainer import collectives

EXCHANGE_SECONDS = 0.02  # at least between two exchanges, which take about 0.1 ms
MAX_STEPS = 20  # between two exchanges


class _Metric(NamedTuple):
    value: float
    step: int  # steps done when it was first sent


class Signals:
    """The signals of one process, and what all ranks know of them."""

    def __init__(self, *, every_step: bool) -> None:
        """Exchange at each step if `every_step`: then no effect depends on the steps' time."""
        self._every_step = every_step
        self._stop_from: int | None = None
        self._given: float | None = None
        self._own: list[_Metric] = []  # sent, and not yet used
        self._known_until = -1  # the metrics first sent until this step are in `metric`
        self._step = 0
        self.is_stopping = False  # all ranks stop now
        self.metric: float | None = None  # for the step in progress: the mean over the ranks
        self.restart(0)

    def stop(self, step: int) -> None:
        """Ask all ranks to stop; `step` steps are done."""
        self._stop_from = step

    def leave(self, step: int) -> None:
        """Record that all ranks have left the loop after `step` steps: those that join stop, too."""
        self._step, self.is_stopping = step, True

    def give_metric(self, value: float) -> None:
        """Give this rank's value of the metric."""
        self._given = value

    def restart(self, step: int) -> None:
        """Begin in a new group, whose ranks have done `step` steps."""
        if step != self._step:
            self.is_stopping, self.metric, self._known_until = False, None, -1
            self._own = [each for each in self._own if self._step <= step < each.step + 2]
        self._is_new = True
        self._sums: torch.Tensor | None = None
        self._step = self._next = self._sent_at = step
        self._since = time.monotonic()

    def exchange(self, step: int) -> None:
        """Learn the signals of the other ranks, and send those of this rank, before each step.

        `step` steps are done, on each rank. Raise RuntimeError if the group breaks.
        """
        if self._is_new:
            self._share_known(step)
        elif self._sums is not None:
            self._read(self._sums)
        self._step = step
        if step >= self._next and not self.is_stopping:
            self._send()

    def on_count(self) -> None:
        """Drop the metric that the counted step has used."""
        if self.metric is not None:
            self._own = [each for each in self._own if each.step > self._known_until]
            self.metric = None

    def _share_known(self, step: int) -> None:
        """Learn what a rank knew in the last group, and another one possibly did not."""
        known = collectives.all_gather_objects((self.is_stopping, self.metric))
        self.is_stopping = any(is_stopping for is_stopping, _ in known)
        self.metric = next((metric for _, metric in known if metric is not None), None)
        if self.metric is not None:
            self._known_until = step - 1
        self._is_new = False

    def _send(self) -> None:
        now, step = time.monotonic(), self._step
        seconds = (now - self._since) / max(1, step - self._sent_at)
        self._since = now
        self._sent_at = step
        if self._given is not None:
            self._own.append(_Metric(self._given, step))
            self._given = None
        new = [each.value for each in self._own if each.step > self._known_until][-1:]
        is_stop = self._stop_from is not None and step >= self._stop_from
        values = [float(is_stop), sum(new), float(len(new)), seconds]
        sums = torch.tensor(values, dtype=torch.float64, device=collectives.device())
        if collectives.world_size() > 1:
            distributed.all_reduce(sums)
        self._sums = sums

    def _read(self, sums: torch.Tensor) -> None:
        stops, metric, metrics, seconds = sums.tolist()
        self._sums = None
        self.is_stopping = stops > 0
        if metrics:
            self.metric, self._known_until = metric / metrics, self._sent_at
        seconds /= collectives.world_size()
        steps = 1 if self._every_step else math.ceil(EXCHANGE_SECONDS / max(seconds, 1e-9))
        self._next = self._sent_at + min(max(1, steps), MAX_STEPS)
