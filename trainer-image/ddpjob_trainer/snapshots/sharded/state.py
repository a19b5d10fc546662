"""A state of which this rank writes its chunks: laid out like any other, with checksums of blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ddpjob_trainer.snapshots.model import chunks, manifest
from ddpjob_trainer.snapshots.model.flat_state import FlatState
from ddpjob_trainer.snapshots.model.staging import StagedState
from ddpjob_trainer.snapshots.sharded.block_digests import BlockDigests
from ddpjob_trainer.snapshots.sharded.layout import chunk_of, hollow, local_of
from ddpjob_trainer.snapshots.sharded.write_plan import HeldTensor, Holding, ShardedPlan
from ddpjob_trainer.tensors.safetensors_writer import TYPES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import torch

    from ddpjob_trainer.snapshots.model.fencing import Fence
    from ddpjob_trainer.tensors.file_digest import FileDigest


class ShardedState(FlatState):
    """The state after a number of steps, of which each rank holds a part."""

    def __init__(self, step: int, state: dict[str, Any]) -> None:
        """Flatten the state. Raise SnapshotError if a value has no form in a snapshot."""
        stand_ins: dict[int, tuple[torch.Tensor, Any]] = {}
        super().__init__(step, hollow(state, stand_ins))
        self._dtensors: dict[str, Any] = {}
        for name, tensor in [*self.tensors.items()]:
            if found := stand_ins.get(tensor.untyped_storage().data_ptr()):
                self._dtensors[name] = found[1]
                del self.tensors[name]
        self.holding: Holding = {
            name: HeldTensor(TYPES[each.dtype], tuple(each.shape), chunk_of(each, name))
            for name, each in self._dtensors.items()
        }
        self._whole_of: dict[str, Any] = {}  # the DTensor of each chunk to write
        self.sharded: dict[str, Any] = {}

    def choose(self, plan: ShardedPlan, rank: int) -> None:
        """Keep what this rank writes: its chunks, and on rank 0 the tensors that are no DTensors."""
        self._whole_of = {chunk: self._dtensors[name] for chunk, name in plan.parts[rank].items()}
        self.tensors = {
            **(self.tensors if rank == 0 else {}),
            **{name: local_of(each) for name, each in self._whole_of.items()},
        }
        self.sharded = chunks.to_json(plan.tensors)

    def version_of(self, name: str) -> int:
        """Return a number that grows when the tensor, or the DTensor of a chunk, is changed."""
        found = self._whole_of.get(name)
        version: int = super().version_of(name)
        return version if found is None else version + found._version  # noqa: SLF001 - as there


class ShardedContent(StagedState):
    """The chunks of a sharded state that this rank writes, ready for a write."""

    def __init__(self, state: ShardedState) -> None:
        super().__init__(state)
        self._sharded = state.sharded
        self._values = state.values, state.step

    def stream_to(self, into: Callable[[Iterator[memoryview]], object]) -> FileDigest:
        """Stream the file as any other, and return the checksums of its blocks, too."""
        blocks = BlockDigests()
        written = super().stream_to(lambda pieces: into(blocks.passing(pieces)))
        return written._replace(blocks=blocks.finish())

    def record(self, files: Mapping[str, FileDigest], fence: Fence) -> bytes:
        """Return the manifest for these files."""
        values, step = self._values
        return manifest.build(step, values, files, fence, self._sharded)
