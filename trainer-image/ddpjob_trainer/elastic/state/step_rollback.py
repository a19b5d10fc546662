"""One attempt at a step, and the undo of its effects if its collectives break.

Parameters change only in the optimizer's step, after all gradients have been reduced. If an attempt
breaks before that step, the model's buffers, the random states and the user's own state must be
restored. If an attempt breaks after that step, the step counts.
"""

from __future__ import annotations

import copy
from typing import Any

import torch

from ddpjob_trainer.tensors import rng_state


class StepRollback:
    """A copy of the state that a step may change before it counts."""

    def __init__(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, extra: Any
    ) -> None:
        self._model = model
        self._optimizer = optimizer
        self._extra = extra
        self._buffers = [buffer.detach().clone() for buffer in model.buffers()]
        self._own = None if extra is None else copy.deepcopy(extra.state_dict())
        self._random = rng_state.get_state()
        self.applied = False  # the optimizer has stepped

    def restore(self) -> None:
        """Restore the state from before the attempt."""
        with torch.no_grad():
            for buffer, before in zip(self._model.buffers(), self._buffers, strict=True):
                buffer.copy_(before)
        if self._extra is not None:
            self._extra.load_state_dict(self._own)
        rng_state.set_state(self._random)
        self._optimizer.zero_grad(set_to_none=True)
