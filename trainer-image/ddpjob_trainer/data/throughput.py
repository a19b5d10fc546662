"""How fast this process computes, without its waits for the others: samples per second.

DDP waits for the others after the last gradient of this process is there; so the clock runs from
where a part is handed out to that gradient. Measured for a few steps after each change, then no more.
Knows nothing of ranks, nor of what follows from it.
"""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable

FIRST = 3  # steps after a change that are slower than others
STEPS = 10  # measured after those


class ThroughputMeter:
    """Of one model in one process."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        self._parameters = [each for each in parameters if each.requires_grad]
        self._hooks: list[Any] = []
        self._is_cuda = any(each.is_cuda for each in self._parameters)
        self._began = self._ended = _Timestamp(is_cuda=False)
        self._samples = 0
        self._steps = 0
        self._found: list[float] = []  # seconds for a sample

    def restart(self) -> None:
        """Measure anew."""
        self._stop()
        self._steps, self._found = 0, []
        self._hooks = [
            each.register_post_accumulate_grad_hook(self._gradient) for each in self._parameters
        ]

    def begin(self, samples: int) -> None:
        """A part of so many samples is handed out."""
        if self._hooks:
            self._began, self._ended = _Timestamp(self._is_cuda), _Timestamp(self._is_cuda)
            self._samples = samples

    def end(self) -> bool:
        """The step's last part is done; whether the measurement has just come to its end."""
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
        """Samples per second; None: it could not be measured."""
        seconds = statistics.median(self._found) if self._found else 0.0
        return 1 / seconds if seconds > 0 else None

    def _gradient(self, _: torch.Tensor) -> None:
        self._ended.is_reached()

    def _stop(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []


class _Timestamp:
    """On the clock of whatever computes."""

    def __init__(self, is_cuda: bool) -> None:
        self._event = torch.cuda.Event(enable_timing=True) if is_cuda else None
        self.is_reached()

    def is_reached(self) -> None:
        self._time = time.perf_counter()
        if self._event is not None:
            self._event.record()

    def since(self, other: _Timestamp) -> float:
        """Seconds."""
        if self._event is None or other._event is None:
            return self._time - other._time
        self._event.synchronize()
        milliseconds: float = other._event.elapsed_time(self._event)
        return milliseconds / 1000
