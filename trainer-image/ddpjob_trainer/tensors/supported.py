"""Models and optimizers whose state a snapshot cannot hold, refused before it is collected.

Every rank comes to the same result without a collective. May not: know of files or ranks.
"""

from __future__ import annotations

import itertools
import sys
from typing import Any

import torch

from ddpjob_trainer.errors import SnapshotError
from ddpjob_trainer.tensors import wrappers

_WITH_FILES = (
    "or save with torch.distributed.checkpoint into a directory of spec.snapshot.files, as "
    "examples/12-fsdp does"
)


def check_supported(model: torch.nn.Module, optimizer: Any) -> None:
    """Raise SnapshotError if the state is spread over the ranks, or if a parameter has no shape yet."""
    for name, tensor in itertools.chain(model.named_parameters(), model.named_buffers()):
        if torch.nn.parameter.is_lazy(tensor):
            raise SnapshotError(
                f"{name} has no shape yet: its module is lazy. Call the model once with a sample, before "
                "the optimizer is made."
            )
    for name, module in model.named_modules():
        if _is_a(module, "torch.distributed.fsdp", "FullyShardedDataParallel"):
            raise SnapshotError(
                f"{name or 'the model'} is a FullyShardedDataParallel (FSDP1): each rank has a part "
                "of its state, and Snapshots would save that of one rank. Use "
                f"DistributedDataParallel, {_WITH_FILES}."
            )
    inner = wrappers.unwrap(optimizer)
    for each in inner if isinstance(inner, list) else [inner]:
        if _is_a(each, "torch.distributed.optim", "ZeroRedundancyOptimizer"):
            raise SnapshotError(
                "the optimizer is a ZeroRedundancyOptimizer: each rank has a part of its state, and "
                "Snapshots would save that of one rank. Use the optimizer that it contains, "
                f"{_WITH_FILES}."
            )


def check_not_sharded(model: torch.nn.Module) -> None:
    """Raise SnapshotError if a parameter or a buffer of the model is a DTensor."""
    for name, tensor in itertools.chain(model.named_parameters(), model.named_buffers()):
        if _is_a(tensor, "torch.distributed.tensor", "DTensor"):
            raise SnapshotError(
                f"{name} is a DTensor (FSDP2 or tensor parallelism): each rank has a part of it, and in "
                "live mode a loss of that rank would lose it. Use Snapshots without a Loop: it saves "
                "and loads such models in snapshot mode."
            )


def _is_a(value: Any, module: str, name: str) -> bool:
    """Return whether `value` is of this class; no value is, if its module is not imported."""
    kind = getattr(sys.modules.get(module), name, None)
    return kind is not None and isinstance(value, kind)
