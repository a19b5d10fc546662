"""A state ready for a write: copied into memory, with its size known before the first byte.

This module must not depend on the destination.
"""

from __future__ import annotations

import bisect
import hashlib
import json
from functools import partial
from typing import TYPE_CHECKING, Any

from ddpjob_trainer.errors import SnapshotError
from ddpjob_trainer.snapshots.model import manifest
from ddpjob_trainer.tensors import serialization
from ddpjob_trainer.tensors.copy_jobs import CopyJob
from ddpjob_trainer.tensors.safetensors_writer import SafetensorsBuffer, StagingBuffer

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping

    import torch

    from ddpjob_trainer.snapshots.model.fencing import Fence
    from ddpjob_trainer.tensors.safetensors_writer import FileDigest

PIECE_BYTES = 4 << 20  # copied by one thread at a time


class StagedState:
    """The state after a number of steps."""

    def __init__(self, step: int, state: dict[str, Any]) -> None:
        """Flatten the state. Raise SnapshotError if a value has no form in a snapshot."""
        self._step = step
        self._state: dict[str, Any] = {}
        tensors: dict[str, torch.Tensor] = {}
        for part, value in state.items():
            self._state[part], found = serialization.flatten(value, part)
            tensors.update(found)
        self._tensors = tensors
        self._versions = {name: tensor._version for name, tensor in tensors.items()}  # noqa: SLF001
        self._image = SafetensorsBuffer(tensors)
        self._copying = CopyJob()
        self._begins: list[int] = []  # offset in the file of each piece to copy

    @property
    def size(self) -> int:
        """Bytes in total, within a few kilobytes."""
        return self._image.size + len(json.dumps(self._state)) + 4096

    @property
    def tensors_size(self) -> int:
        """Bytes of the tensors' file."""
        return self._image.size

    def sizes(self, storages: Container[int]) -> dict[str, int]:
        """Return the bytes of each tensor inside of these storages."""
        return {name: tensor.nbytes for name, tensor in self._inside(storages).items()}

    def outline(self, names: Iterable[str]) -> str:
        """Return a digest that is equal for tensors of equal names, types and shapes."""
        given = [(name, self._tensors[name]) for name in sorted(names)]
        told = [[name, str(tensor.dtype), [*tensor.shape]] for name, tensor in given]
        return hashlib.sha256(json.dumps(told).encode()).hexdigest()

    def select(self, names: Container[str]) -> None:
        """Keep only these tensors in the file, which is then one part of the state."""
        self._tensors = {name: each for name, each in self._tensors.items() if name in names}
        self._image = SafetensorsBuffer(self._tensors)

    def exclude(self, names: Container[str]) -> None:
        """Keep all tensors but these in the file."""
        self.select({name for name in self._tensors if name not in names})

    def allocate(self, memory: StagingBuffer) -> None:
        """Allocate memory for a copy; without a copy, the state must not change during the write.

        Raise SnapshotError if there is not enough memory.
        """
        self._image.allocate(memory)

    def copy(self, stable_storages: Container[int]) -> CopyJob:
        """Copy the state except these storages, given by address; return the job that copies those.

        Copied tensors may change afterwards. If a tensor has changed since the construction, this
        method and the job raise SnapshotError.
        """
        later = self._inside(stable_storages)
        self._copy([name for name in self._tensors if name not in later])
        begins = self._image.begins(later)
        pieces = list(_pieces({name: later[name] for name in begins}))
        self._copying = CopyJob(partial(self._copy, names) for names in pieces)
        self._begins = [begins[names[0]] for names in pieces]
        return self._copying

    def finish_copying(self) -> None:
        """Wait until the copy is complete. Raise SnapshotError if the state has changed."""
        self._copying.finish()

    def _copy(self, names: Collection[str]) -> None:
        self._image.copy(names)
        self._check(names)

    def _inside(self, storages: Container[int]) -> dict[str, torch.Tensor]:
        return {
            name: tensor
            for name, tensor in self._tensors.items()
            if tensor.untyped_storage().data_ptr() in storages
        }

    def stream_to(self, into: Callable[[Iterator[memoryview]], object]) -> FileDigest:
        """Stream the tensors' file to `into`, chunk by chunk, during the rest of the copy.

        Raise the errors of `into`, and SnapshotError if the state has changed meanwhile.
        """
        poured = self._image.stream_to(into, self._have_copied)
        if not self._image.is_copied:
            self._check(self._tensors)
        return poured

    def _have_copied(self, end: int) -> None:
        """Wait until the bytes before `end` are copied."""
        self._copying.reach(bisect.bisect_left(self._begins, end))

    def record(self, files: Mapping[str, FileDigest], fence: Fence) -> bytes:
        """Return the manifest for these files."""
        return manifest.build(self._step, self._state, files, fence)

    def _check(self, names: Iterable[str]) -> None:
        if any(self._tensors[name]._version != self._versions[name] for name in names):  # noqa: SLF001 - torch's own way to find it out
            raise SnapshotError(
                f"Step {self._step} is not saved: the model or the optimizer's state was changed "
                "while it was copied, and not by the optimizer's step. Change it before save(), or "
                "save with wait=True."
            )


def _pieces(tensors: Mapping[str, torch.Tensor]) -> Iterator[list[str]]:
    """Yield names of tensors to copy at once: many small tensors, or a large one."""
    names, size = [], 0
    for name, tensor in tensors.items():
        names.append(name)
        size += tensor.nbytes
        if size >= PIECE_BYTES:
            yield names
            names, size = [], 0
    if names:
        yield names
