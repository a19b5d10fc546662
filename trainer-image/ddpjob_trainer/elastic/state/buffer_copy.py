"""A copy of a model's buffers by name, for the undo of a forward pass."""

from __future__ import annotations

import torch


class BufferCopy:
    """The buffers of a model at the time of the construction."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._buffers = {
            name: (buffer, buffer.detach().clone()) for name, buffer in model.named_buffers()
        }

    @torch.no_grad()
    def restore(self) -> None:
        """Restore the buffers.

        A buffer that state_dict() leaves out, and that is new or has another shape, is a cache that
        has grown; it stays.
        """
        now = dict(self._model.named_buffers())
        for name in now.keys() - self._buffers.keys():
            module, own, is_saved = _owner(self._model, name)
            if is_saved:
                del module._buffers[own]  # noqa: SLF001 - torch has no other way to remove one
        for name, (buffer, before) in self._buffers.items():
            current = now.get(name)
            module, own, is_saved = _owner(self._model, name)
            if current is not None and current.shape != before.shape and not is_saved:
                continue
            if current is not buffer:
                module._buffers[own] = buffer  # noqa: SLF001
            if buffer.shape == before.shape:
                buffer.copy_(before)
            else:
                buffer.set_(before)  # type: ignore[call-overload]


def _owner(model: torch.nn.Module, name: str) -> tuple[torch.nn.Module, str, bool]:
    """Return a buffer's module, its name there, and whether state_dict() has the buffer."""
    path, _, own = name.rpartition(".")
    module = model.get_submodule(path)
    return module, own, own not in module._non_persistent_buffers_set  # noqa: SLF001
