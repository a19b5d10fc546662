"""What a training script imports: snapshots that are whole or absent, and progress reports.

May import torch, the standard library and `ddpjob_agent.contract`; never the operator.
Importing it opens no file and no socket.
"""

from __future__ import annotations

from ddpjob_trainer.batches import Batches
from ddpjob_trainer.errors import AwayError, OvertakenError, SnapshotError
from ddpjob_trainer.loop import Loop
from ddpjob_trainer.rate import scale_rate
from ddpjob_trainer.reporting import step_done
from ddpjob_trainer.snapshot import Loaded, Snapshots
from ddpjob_trainer.stream import Stream

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
