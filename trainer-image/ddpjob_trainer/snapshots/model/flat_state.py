"""A state as plain values and named tensors, which share the memory of the model and optimizer."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from ddpjob_trainer.tensors import serialization

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    import torch


class FlatState:
    """The state after a number of steps."""

    def __init__(self, step: int, state: dict[str, Any]) -> None:
        """Flatten the state. Raise SnapshotError if a value has no form in a snapshot."""
        self.step = step
        self.values: dict[str, Any] = {}
        self.tensors: dict[str, torch.Tensor] = {}
        for part, value in state.items():
            self.values[part], found = serialization.flatten(value, part)
            self.tensors.update(found)

    def inside(self, storages: Container[int]) -> dict[str, torch.Tensor]:
        """Return the tensors inside of these storages, given by address."""
        return {
            name: tensor
            for name, tensor in self.tensors.items()
            if tensor.untyped_storage().data_ptr() in storages
        }

    def version_of(self, name: str) -> int:
        """Return a number that grows when the tensor is changed in place."""
        return self.tensors[name]._version  # noqa: SLF001 - torch's own way to find it out

    def outline(self, names: Iterable[str]) -> str:
        """Return a digest that is equal for tensors of equal names, types and shapes."""
        given = [(name, self.tensors[name]) for name in sorted(names)]
        outline = [[name, str(tensor.dtype), [*tensor.shape]] for name, tensor in given]
        return hashlib.sha256(json.dumps(outline).encode()).hexdigest()
