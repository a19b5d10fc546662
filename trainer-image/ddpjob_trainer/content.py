"""A state made ready to be written: copied into memory, its size known before the first byte.

May not: know where it goes.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ddpjob_trainer import manifest, tree
from ddpjob_trainer.image import Image, Memory

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator

    import torch

    from ddpjob_trainer.fences import Fence


class Content:
    """The state after so many steps."""

    def __init__(self, step: int, state: dict[str, Any]) -> None:
        """Raises SnapshotError when the state holds something that has no form in a snapshot."""
        self._step = step
        self._state: dict[str, Any] = {}
        tensors: dict[str, torch.Tensor] = {}
        for part, value in state.items():
            self._state[part], found = tree.flatten(value, part)
            tensors.update(found)
        self._tensors = tensors
        self._versions = {name: tensor._version for name, tensor in tensors.items()}  # noqa: SLF001
        self._image = Image(tensors)

    @property
    def size(self) -> int:
        """Bytes in all, within a few kilobytes."""
        return self._image.size + len(json.dumps(self._state)) + 4096

    @property
    def tensors_size(self) -> int:
        """Bytes of the tensors' file."""
        return self._image.size

    def place(self, memory: Memory) -> None:
        """Where the copy goes. Raises SnapshotError if there is no memory for it."""
        self._image.place(memory)

    def copy(self, storages: Container[int] = (), *, inside: bool = False) -> bool:
        """Copy tensors that lie outside of these storages, or inside; they may change from then on.

        False if they have changed since this was made.
        """
        chosen = {
            name: tensor
            for name, tensor in self._tensors.items()
            if (tensor.untyped_storage().data_ptr() in storages) is inside
        }
        self._image.copy(chosen)
        return all(tensor._version == self._versions[name] for name, tensor in chosen.items())  # noqa: SLF001 - torch's own way to find it out

    def pour(self, into: Callable[[Iterator[memoryview]], object], fence: Fence) -> bytes:
        """Give the tensors' file away, chunk by chunk; returns the manifest for it.

        Raises what `into` raises.
        """
        return manifest.build(self._step, self._state, self._image.pour(into), fence)
