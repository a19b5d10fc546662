"""A copy of the parameters and of the optimizers' states, for the undo of a body that changed them.

Each copy uses the memory of the one before: as much as the parameters and states take, on the same
devices.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence


class StateCopy:
    """The parameters and optimizers' states at the time of the last take()."""

    def __init__(
        self,
        parameters: Sequence[torch.nn.Parameter],
        optimizers: Sequence[torch.optim.Optimizer],
    ) -> None:
        self._parameters = parameters
        self._optimizers = optimizers
        self._weights: list[torch.Tensor] = []
        self._states: list[Any] = [None] * len(optimizers)

    @torch.no_grad()
    def take(self) -> None:
        """Copy the state as it is now."""
        self._weights = _copied([*self._parameters], self._weights)
        self._states = [
            _copied(dict(optimizer.state), before)
            for optimizer, before in zip(self._optimizers, self._states, strict=True)
        ]

    @torch.no_grad()
    def restore(self) -> None:
        """Restore the state of the last take()."""
        for parameter, before in zip(self._parameters, self._weights, strict=True):
            parameter.copy_(before)
        for optimizer, before in zip(self._optimizers, self._states, strict=True):
            optimizer.state.clear()
            optimizer.state.update(_copied(before, None))


def _copied(value: Any, memory: Any) -> Any:
    """Return a deep copy of `value`, in the memory of an older copy where shapes are equal."""
    if isinstance(value, torch.Tensor):
        if not _is_alike(value, memory):
            return value.detach().clone()
        memory.copy_(value.detach())
        return memory
    if isinstance(value, dict):
        known = memory if isinstance(memory, dict) else {}
        return {key: _copied(each, known.get(key)) for key, each in value.items()}
    if type(value) in (list, tuple):
        old = memory if isinstance(memory, (list, tuple)) else ()
        copies = (_copied(v, old[i] if i < len(old) else None) for i, v in enumerate(value))
        return type(value)(copies)
    return copy.deepcopy(value)


def _is_alike(value: torch.Tensor, memory: Any) -> bool:
    return (
        isinstance(memory, torch.Tensor)
        and value.layout == torch.strided
        and (value.shape, value.dtype, value.device) == (memory.shape, memory.dtype, memory.device)
    )
