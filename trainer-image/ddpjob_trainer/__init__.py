"""The library for training scripts: snapshots that are complete or absent, and progress reports.

May import torch, the standard library and `ddpjob_protocol`; never the operator.
The import opens no file and no socket.
"""

from __future__ import annotations

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
