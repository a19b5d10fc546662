"""Parameters and buffers that a model's state_dict() leaves out, for processes that join.

Those are buffers with persistent=False, and what a state_dict() of the model's own leaves out, such
as frozen weights. Each process makes them itself, and they may differ.
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
