"""The speed of this process without its waits for the other ranks, in samples per second.

DDP waits for the other ranks after this process has computed its last gradient. So the clock runs
from the start of a part to that gradient. The meter measures a few steps after each change, then
stops. This module does not depend on ranks or on the use of the speed.
"""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable

FIRST = 3  # slow steps right after a change
STEPS = 10  # measured steps after the slow ones


class ThroughputMeter:
    """A meter for one model in one process."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        self._parameters = [each for each in parameters if each.requires_grad]
        self._hooks: list[Any] = []
        self._is_cuda = any(each.is_cuda for each in self._parameters)
        self._began = self._ended = _Timestamp(is_cuda=False)
        self._samples = 0
        self._steps = 0
        self._found: list[float] = []  # seconds per sample

    def restart(self) -> None:
        """Start a new measurement."""
        self._stop()
        self._steps, self._found = 0, []
        self._hooks = [
            each.register_post_accumulate_grad_hook(self._gradient) for each in self._parameters
        ]

    def begin(self, samples: int) -> None:
        """Start the clock for a part of this number of samples."""
        if self._hooks:
            self._began, self._ended = _Timestamp(self._is_cuda), _Timestamp(self._is_cuda)
            self._samples = samples

    def end(self) -> bool:
        """Record the end of a step; return True if this step completes the measurement."""
        if not self._hooks:
            return False
        self._steps += 1
        if self._steps > FIRST:
            self._found.append(self._ended.since(self._began) / self._samples)
        if self._steps < FIRST + STEPS:
            return False
        self._stop()
        return True

    @property
    def speed(self) -> float | None:
        """Samples per second; None if there is no measurement."""
        seconds = statistics.median(self._found) if self._found else 0.0
        return 1 / seconds if seconds > 0 else None

    def _gradient(self, _: torch.Tensor) -> None:
        self._ended.is_reached()

    def _stop(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []


class _Timestamp:
    """A point in time on the clock of the device that computes."""

    def __init__(self, is_cuda: bool) -> None:
        self._event = torch.cuda.Event(enable_timing=True) if is_cuda else None
        self.is_reached()

    def is_reached(self) -> None:
        self._time = time.perf_counter()
        if self._event is not None:
            self._event.record()

    def since(self, other: _Timestamp) -> float:
        """Return the seconds from `other` to this timestamp."""
        if self._event is None or other._event is None:
            return self._time - other._time
        self._event.synchronize()
        milliseconds: float = other._event.elapsed_time(self._event)
        return milliseconds / 1000
