"""The library for training scripts: snapshots that are complete or absent, and progress reports.

May import torch, the standard library and `ddpjob_protocol`; never the operator.
The import opens no file and no socket. It loads a module when one of its names is first used, so that
`ddpjob snapshots list` needs no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ddpjob_trainer.data.batch_sampler import ElasticBatchSampler
    from ddpjob_trainer.data.lr_scaling import scale_lr
    from ddpjob_trainer.data.stream import Stream
    from ddpjob_trainer.elastic.loop import Loop
    from ddpjob_trainer.errors import FencedError, SnapshotError, StorageUnavailableError
    from ddpjob_trainer.reporting.progress import step_done
    from ddpjob_trainer.snapshots.manager import Loaded, Snapshots

__all__ = [
    "ElasticBatchSampler",
    "FencedError",
    "Loaded",
    "Loop",
    "SnapshotError",
    "Snapshots",
    "StorageUnavailableError",
    "Stream",
    "scale_lr",
    "step_done",
]

_MODULES = {
    "ElasticBatchSampler": "data.batch_sampler",
    "FencedError": "errors",
    "Loaded": "snapshots.manager",
    "Loop": "elastic.loop",
    "SnapshotError": "errors",
    "Snapshots": "snapshots.manager",
    "StorageUnavailableError": "errors",
    "Stream": "data.stream",
    "scale_lr": "data.lr_scaling",
    "step_done": "reporting.progress",
}


def __getattr__(name: str) -> Any:
    """Return a public name, and load its module."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
