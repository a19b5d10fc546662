"""A state made ready to be written: copied into memory, its size known before the first byte.

May not: know where it goes.
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

PIECE_BYTES = 4 << 20  # that one thread copies before it looks what is left


class StagedState:
    """The state after so many steps."""

    def __init__(self, step: int, state: dict[str, Any]) -> None:
        """Raises SnapshotError when the state holds something that has no form in a snapshot."""
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
        self._begins: list[int] = []  # in the file, of what each piece of that copies
        self.whole_size = self._image.size  # bytes of the tensors' file, or of all files together

    @property
    def size(self) -> int:
        """Bytes in all, within a few kilobytes."""
        return self._image.size + len(json.dumps(self._state)) + 4096

    @property
    def tensors_size(self) -> int:
        """Bytes of the tensors' file."""
        return self._image.size

    def sizes(self, storages: Container[int]) -> dict[str, int]:
        """Bytes of the tensors inside of these storages."""
        return {name: tensor.nbytes for name, tensor in self._inside(storages).items()}

    def outline(self, names: Iterable[str]) -> str:
        """The same for tensors of the same names, types and shapes."""
        given = [(name, self._tensors[name]) for name in sorted(names)]
        told = [[name, str(tensor.dtype), [*tensor.shape]] for name, tensor in given]
        return hashlib.sha256(json.dumps(told).encode()).hexdigest()

    def select(self, names: Container[str]) -> None:
        """The file has these tensors only: it is but a part of the state."""
        self._tensors = {name: each for name, each in self._tensors.items() if name in names}
        self._image = SafetensorsBuffer(self._tensors)

    def exclude(self, names: Container[str]) -> None:
        """The file has all but these."""
        self.select({name for name in self._tensors if name not in names})

    def allocate(self, memory: StagingBuffer) -> None:
        """Where a copy goes; without one, nothing may change while it is given away.

        Raises SnapshotError if there is no memory for it.
        """
        self._image.allocate(memory)

    def copy(self, stable_storages: Container[int]) -> CopyJob:
        """Copy all but what lies in these storages, by address; returns the work of copying that.

        What is copied may change from then on. Raises SnapshotError if it has since this was made,
        and so does that work.
        """
        later = self._inside(stable_storages)
        self._copy([name for name in self._tensors if name not in later])
        begins = self._image.begins(later)
        pieces = list(_pieces({name: later[name] for name in begins}))
        self._copying = CopyJob(partial(self._copy, names) for names in pieces)
        self._begins = [begins[names[0]] for names in pieces]
        return self._copying

    def finish_copying(self) -> None:
        """Returns when all has been copied. Raises SnapshotError if it was changed meanwhile."""
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
        """Give the tensors' file away, chunk by chunk, while the rest of it is still being copied.

        Raises what `into` raises, and SnapshotError if the state was changed meanwhile.
        """
        poured = self._image.stream_to(into, self._have_copied)
        if not self._image.is_copied:
            self._check(self._tensors)
        return poured

    def _have_copied(self, end: int) -> None:
        """All that lies before this byte."""
        self._copying.reach(bisect.bisect_left(self._begins, end))

    def record(self, files: Mapping[str, FileDigest], fence: Fence) -> bytes:
        """The manifest for these files."""
        return manifest.build(self._step, self._state, files, fence)

    def _check(self, names: Iterable[str]) -> None:
        if any(self._tensors[name]._version != self._versions[name] for name in names):  # noqa: SLF001 - torch's own way to find it out
            raise SnapshotError(
                f"Step {self._step} is not saved: the model or the optimizer's state was changed "
                "while it was copied, and not by the optimizer's step. Change it before save(), or "
                "save with wait=True."
            )


def _pieces(tensors: Mapping[str, torch.Tensor]) -> Iterator[list[str]]:
    """Names of tensors that are copied at once: many small ones, or a large one."""
    names, size = [], 0
    for name, tensor in tensors.items():
        names.append(name)
        size += tensor.nbytes
        if size >= PIECE_BYTES:
            yield names
            names, size = [], 0
    if names:
        yield names
