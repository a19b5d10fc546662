"""One attempt at a step, and the undo of its effects if its collectives break.

Mostly, parameters change only in the step of one optimizer, after all gradients have been reduced.
If an attempt breaks before that step, the model's buffers, the random states and the user's own
state must be restored. If it breaks after that step, the step counts. With several optimizers, or
if other code changes the weights, too, the attempt begins with a copy of the whole state. Then it
counts at its end only, and any break undoes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ddpjob_trainer.elastic.state.buffer_copy import BufferCopy
from ddpjob_trainer.elastic.state.left_out import TrainingFlags
from ddpjob_trainer.elastic.state.scaler_copy import ScalerCopy
from ddpjob_trainer.tensors import rng_state

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddpjob_trainer.elastic.state.extra_backup import ExtraBackup
    from ddpjob_trainer.elastic.state.state_copy import StateCopy
    from ddpjob_trainer.elastic.state.weight_changes import WeightChanges


class StepRollback:
    """A copy of the state that a step may change before it counts."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        scaler: Any,
        extra: ExtraBackup | None,
        changes: WeightChanges,
        *,
        whole: bool,
    ) -> None:
        self._optimizers = optimizers
        self._extra = extra
        self.changes = changes
        self._buffers = BufferCopy(model)
        self.flags = TrainingFlags(model)
        self._groups = [[*map(_hyperparameters, each.param_groups)] for each in optimizers]
        self.scaler = ScalerCopy(scaler) if scaler is not None and scaler.is_enabled() else None
        if extra is not None:
            extra.take(all_tensors=whole)
        self._random = rng_state.get_state()
        self._copy: StateCopy | None = None

    def keep_copy(self, state_copy: StateCopy) -> None:
        """Copy the parameters and the optimizers' states; they must be as at the begin."""
        if self._copy is None:
            state_copy.take()
            self._copy = state_copy

    @property
    def applied(self) -> bool:
        """True if the step counts, whatever happens in the rest of the body."""
        return self._copy is None and self.changes.is_one_step

    def restore(self) -> bool:
        """Restore the state from before the attempt.

        Return False if a part of the state has changed that has no copy.
        """
        is_whole = self._copy is not None or self.changes.is_none
        if self._copy is not None:
            self._copy.restore()
        self._buffers.restore()
        self.flags.restore(applied=False)
        if self.scaler is not None:
            self.scaler.restore()
        if self._extra is not None:
            is_whole = self._extra.restore() and is_whole
        rng_state.set_state(self._random)
        for optimizer, groups in zip(self._optimizers, self._groups, strict=True):
            optimizer.zero_grad(set_to_none=True)
            for group, before in zip(optimizer.param_groups, groups, strict=False):
                _set_hyperparameters(group, before)
        return is_whole


def _hyperparameters(group: dict[str, Any]) -> dict[str, Any]:
    return {
        name: (value, value.clone()) if isinstance(value, torch.Tensor) else value
        for name, value in group.items()
        if name != "params"
    }


def _set_hyperparameters(group: dict[str, Any], before: dict[str, Any]) -> None:
    for name, value in before.items():
        if isinstance(value, tuple) and value and isinstance(value[0], torch.Tensor):
            tensor, content = value
            tensor.copy_(content)
            group[name] = tensor
        else:
            group[name] = value
