"""The facts that a model's state_dict() leaves out, for processes that join.

They are which parameters are trained, which modules evaluate, and tensors: buffers with persistent=False, and what a
state_dict() of the model's own leaves out, such as frozen weights. Each process makes these tensors
itself, and they may differ.
"""

from __future__ import annotations

from typing import Any

import torch


def collect(model: torch.nn.Module) -> dict[str, Any]:
    """Return these facts by name; tensors share their memory."""
    saved = {
        value.data_ptr() for value in model.state_dict().values() if isinstance(value, torch.Tensor)
    }
    return {
        "tensors": {
            name: tensor.detach()
            for name, tensor in (*model.named_parameters(), *model.named_buffers())
            if tensor.numel() and tensor.data_ptr() not in saved
        },
        "frozen": [name for name, each in model.named_parameters() if not each.requires_grad],
        "evaluating": [name for name, each in model.named_modules() if not each.training],
    }


def restore(model: torch.nn.Module, found: dict[str, Any]) -> None:
    """Restore the result of collect()."""
    _restore_tensors(model, found["tensors"])
    frozen, evaluating = set(found["frozen"]), set(found["evaluating"])
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in frozen)
    for name, module in model.named_modules():
        module.training = name not in evaluating


@torch.no_grad()
def _restore_tensors(model: torch.nn.Module, found: dict[str, torch.Tensor]) -> None:
    """Set these tensors; a buffer that is missing here, or has another shape, becomes a new one."""
    now = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for name, value in found.items():
        current = now.get(name)
        if current is not None and current.shape == value.shape:
            current.copy_(value)
        elif not isinstance(current, torch.nn.Parameter):
            path, _, own = name.rpartition(".")
            device = next(iter(model.parameters()), value).device
            is_persistent = False
            model.get_submodule(path).register_buffer(own, value.to(device), is_persistent)


class TrainingFlags:
    """Which modules train and which evaluate, at the begin of a step and at its optimizer's step.

    An evaluation in the body of a step may be cut off before it sets the modules to train again.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._modules = [*model.modules()]
        self._begin = self._applied = self._now()

    def note_applied(self) -> None:
        """Record the flags of a step that counts."""
        self._applied = self._now()

    def restore(self, *, applied: bool) -> None:
        """Set the flags from before the step, or those at the optimizer's step."""
        for module, flag in zip(
            self._modules, self._applied if applied else self._begin, strict=True
        ):
            module.training = flag

    def _now(self) -> list[bool]:
        return [each.training for each in self._modules]
