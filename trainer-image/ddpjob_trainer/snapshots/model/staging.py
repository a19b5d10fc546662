"""A state on its way into a file, whose size is known before the first byte.

The tensors are copied into memory, or, if memory is short, read while the file is written.
This module must not depend on the destination.
"""

from __future__ import annotations

import bisect
import json
from functools import partial
from typing import TYPE_CHECKING

from ddpjob_trainer.errors import StateChangedError
from ddpjob_trainer.snapshots.model import manifest
from ddpjob_trainer.tensors import copy_check
from ddpjob_trainer.tensors.copy_jobs import CopyJob
from ddpjob_trainer.tensors.safetensors_writer import SafetensorsBuffer, StagingBuffer

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping

    import torch

    from ddpjob_trainer.snapshots.model.fencing import Fence
    from ddpjob_trainer.snapshots.model.flat_state import FlatState
    from ddpjob_trainer.tensors.file_digest import FileDigest

PIECE_BYTES = 4 << 20  # copied by one thread at a time


class StagedState:
    """The tensors of a state, or of one part of it, ready for a write."""

    def __init__(self, state: FlatState, names: Collection[str] | None = None) -> None:
        """Lay out the file of these tensors, by default of all."""
        self._state = state
        chosen = state.tensors if names is None else names
        self._tensors = {name: each for name, each in state.tensors.items() if name in chosen}
        self._versions = {name: state.version_of(name) for name in self._tensors}
        self._image = SafetensorsBuffer(self._tensors)
        self._copying = CopyJob()
        self._unsure: set[str] = set()  # copied while the training thread ran
        self._begins: list[int] = []  # offset in the file of each piece to copy

    @property
    def size(self) -> int:
        """Bytes in total, within a few kilobytes."""
        return self._image.size + len(json.dumps(self._state.values)) + 4096

    @property
    def total_size(self) -> int:
        """Bytes of the whole snapshot, with the parts of other writers, within a few kilobytes."""
        others = sum(tensor.nbytes for tensor in self._state.tensors.values())
        return self.size + others - sum(tensor.nbytes for tensor in self._tensors.values())

    @property
    def tensors_size(self) -> int:
        """Bytes of the tensors' file."""
        return self._image.size

    def copy(self, memory: StagingBuffer, unchanged_tensors: Container[int]) -> CopyJob:
        """Copy the tensors except these storages, given by address; return the job for those.

        Copied tensors may change afterwards; without a copy, no tensor may change during the write.
        This method and the job raise StateChangedError if a tensor has changed since the
        construction. The job finds changes of which torch does not know, too: it compares the copy
        with the tensors at its end, but for what it copied while the training thread was blocked.
        This method also raises NoCopyMemoryError.
        """
        self._image.allocate(memory)
        stable = self._state.inside(unchanged_tensors)
        later = {name: each for name, each in self._tensors.items() if name in stable}
        self._copy([name for name in self._tensors if name not in later])
        begins = self._image.begins(later)
        pieces = list(_pieces({name: later[name] for name in begins}))
        sample = copy_check.Sample(later)
        self._copying = CopyJob(
            [partial(self._copy_beside_training, names) for names in pieces],
            [partial(self._check_sample, sample), *(partial(self._verify, n) for n in pieces)],
        )
        self._begins = [begins[names[0]] for names in pieces]
        return self._copying

    def finish_copying(self) -> None:
        """Wait until the copy is complete. Raise StateChangedError if the state has changed."""
        self._copying.finish()

    def _copy(self, names: Collection[str]) -> None:
        self._image.copy(names)
        self._check(names)

    def _copy_beside_training(self, names: Collection[str]) -> None:
        if self._copying.is_urgent:  # the training thread is blocked, but not a GPU's queue
            names_at_risk = [name for name in names if self._tensors[name].device.type != "cpu"]
        else:
            names_at_risk = [*names]
        self._unsure.update(names_at_risk)
        self._copy(names)

    def _check_sample(self, sample: copy_check.Sample) -> None:
        """Raise StateChangedError if a tensor was changed before its copy began."""
        if not sample.is_in(self._image.copy_of):
            raise self._changed()

    def _verify(self, names: Collection[str]) -> None:
        """Raise StateChangedError if a tensor was changed after its copy, or meanwhile."""
        for name in self._unsure.intersection(names):
            if not self._image.is_equal(name):
                raise self._changed()
        self._check(names)

    def stream_to(self, into: Callable[[Iterator[memoryview]], object]) -> FileDigest:
        """Stream the tensors' file to `into`, chunk by chunk, during the rest of the copy.

        Raise the errors of `into`, and StateChangedError if the state has changed meanwhile.
        """
        poured = self._image.stream_to(into, self._have_copied)
        if self._image.is_copied:
            self.finish_copying()
        else:
            self._check(self._tensors)
        return poured

    def _have_copied(self, end: int) -> None:
        """Wait until the bytes before `end` are copied."""
        self._copying.reach(bisect.bisect_left(self._begins, end))

    def record(self, files: Mapping[str, FileDigest], fence: Fence) -> bytes:
        """Return the manifest for these files."""
        return manifest.build(self._state.step, self._state.values, files, fence)

    def _check(self, names: Iterable[str]) -> None:
        if any(self._state.version_of(name) != self._versions[name] for name in names):
            raise self._changed()

    def _changed(self) -> StateChangedError:
        return StateChangedError(
            f"Step {self._state.step} is not saved: the model or the optimizer's state was changed "
            "while it was copied, and not by the step of an optimizer that save() was given. Give "
            "save() all optimizers, as optimizer=[first, second], and change weights before save()."
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
