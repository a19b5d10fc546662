"""The facts that a model's state_dict() leaves out, for processes that join.

They are which parameters are trained, and tensors: buffers with persistent=False, and what a
state_dict() of the model's own leaves out, such as frozen weights. Each process makes these tensors
itself, and they may differ.
"""

from __future__ import annotations

import torch


def left_out_of_state_dict(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return these tensors by name, sharing their memory."""
    saved = {
        value.data_ptr() for value in model.state_dict().values() if isinstance(value, torch.Tensor)
    }
    return {
        name: tensor.detach()
        for name, tensor in (*model.named_parameters(), *model.named_buffers())
        if tensor.numel() and tensor.data_ptr() not in saved
    }


@torch.no_grad()
def restore_left_out(model: torch.nn.Module, found: dict[str, torch.Tensor]) -> None:
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


def trained_parameters(model: torch.nn.Module) -> dict[str, bool]:
    """Return for each parameter by name whether it is trained: a script may freeze layers."""
    return {name: each.requires_grad for name, each in model.named_parameters()}


def restore_trained(model: torch.nn.Module, found: dict[str, bool]) -> None:
    """Freeze and unfreeze the parameters as in the result of trained_parameters()."""
    for name, each in model.named_parameters():
        each.requires_grad_(found.get(name, each.requires_grad))
