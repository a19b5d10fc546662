"""What a training script imports: snapshots that are whole or absent, and progress reports.

May import torch, the standard library and `ddpjob_protocol`; never the operator.
Importing it opens no file and no socket.
"""

from __future__ import annotations

from ddpjob_trainer.data.batch_sampler import Batches
from ddpjob_trainer.data.lr_scaling import scale_rate
from ddpjob_trainer.data.stream import Stream
from ddpjob_trainer.elastic.loop import Loop
from ddpjob_trainer.errors import AwayError, OvertakenError, SnapshotError
from ddpjob_trainer.reporting.progress import step_done
from ddpjob_trainer.snapshots.manager import Loaded, Snapshots

__all__ = [
    "AwayError",
    "Batches",
    "Loaded",
    "Loop",
    "OvertakenError",
    "SnapshotError",
    "Snapshots",
    "Stream",
    "scale_rate",
    "step_done",
]
