"""The gate before each optimizer step: parameters change only by gradients of all ranks.

On devices a collective returns before it has run, and one that was aborted leaves wrong values
without an error. So the gate waits for the device, and then asks whether the group has failed. If
it has, the optimizer does not step, and the loop repeats the step in the next group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import distributed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ddpjob_trainer.elastic.group.process_group import ElasticProcessGroup


def _synchronize_cuda(device: torch.device) -> None:
    torch.cuda.current_stream(device).synchronize()


# Type of device → wait for all that the caller's stream has queued on such a device.
SYNCHRONIZE: dict[str, Callable[[torch.device], None]] = {"cuda": _synchronize_cuda}


def _refuse_capture() -> None:
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "optimizer.step() is captured in a CUDA graph. A Loop cannot see the steps of its "
            "replays. Capture forward and backward only, and call optimizer.step() outside"
        )


class CommitGate:
    """The check that the gradients of a step were reduced over all ranks."""

    def __init__(self, group: ElasticProcessGroup, parameters: Iterable[torch.Tensor]) -> None:
        self._group = group
        self._devices = {parameter.device for parameter in parameters}

    def check(self) -> None:
        """Return once all gradients are reduced. Raise GroupAbortedError if they may be wrong.

        Raise RuntimeError in a CUDA graph: its replay would step without this check.
        """
        if any(device.type == "cuda" for device in self._devices):
            _refuse_capture()
        if not distributed.is_initialized() or distributed.get_world_size() == 1:
            return
        for device in self._devices:
            wait = SYNCHRONIZE.get(device.type)
            if wait is not None:
                wait(device)
        self._group.raise_if_failed()
