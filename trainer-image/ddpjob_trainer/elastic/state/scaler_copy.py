"""A copy of a GradScaler's state, for the undo of a step. Reads nothing from a GPU."""

from __future__ import annotations

from typing import Any

import torch

_NAMES = ("_scale", "_growth_tracker")  # None before the first scale()


class ScalerCopy:
    """The state of an enabled GradScaler at the time of the construction."""

    def __init__(self, scaler: Any) -> None:
        self._scaler = scaler
        self._tensors = {
            name: value.clone()
            if isinstance(value := getattr(scaler, name, None), torch.Tensor)
            else None
            for name in _NAMES
        }
        self._version = _version(scaler)

    @property
    def is_updated(self) -> bool:
        """True if the script has called update(): an optimizer's step was done or left out."""
        return _version(self._scaler) != self._version

    def restore(self) -> None:
        """Restore the scale, and forget which optimizers' gradients are unscaled."""
        for name, value in self._tensors.items():
            current = getattr(self._scaler, name)
            if value is None or current is None:
                setattr(self._scaler, name, value)
            else:
                current.copy_(value)
        self._scaler._per_optimizer_states.clear()  # noqa: SLF001 - update() does it, but needs a step


def _version(scaler: Any) -> int:
    scale = getattr(scaler, "_scale", None)
    return scale._version if isinstance(scale, torch.Tensor) else 0  # noqa: SLF001
