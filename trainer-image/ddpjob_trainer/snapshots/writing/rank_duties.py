"""The duties of this rank in a save: whether it writes for all ranks with the same storage, or a part.

May not: write.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddpjob_trainer import collectives
from ddpjob_trainer.collectives import StorageGroup

if TYPE_CHECKING:
    from ddpjob_trainer.snapshots.model.fencing import Owner
    from ddpjob_trainer.snapshots.storage.snapshot_storage import SnapshotStorage
    from ddpjob_trainer.snapshots.writing.writer_fence import WriterFence


class RankDuties:
    """The ranks with the storage of this rank, found once per membership and process group."""

    def __init__(self, storage: SnapshotStorage, fence: WriterFence, *, shares: bool) -> None:
        self._storage = storage
        self._fence = fence
        self.group = StorageGroup((0,), (0,), 1)
        self._known_for: tuple[Owner, bool] | None = None
        self.shares = shares  # the ranks divide a large state
        self.is_sharded = False  # the model is, so each rank writes the tensors that it holds

    def discover(self) -> None:
        """Find the ranks with the same storage, on each rank; until then, rank 0 alone writes.

        Raise RuntimeError if the group breaks.
        """
        if not self._is_known:
            self.group = self._storage.group()
            self._known_for = self._fence.owner, collectives.is_initialized()

    @property
    def _is_known(self) -> bool:
        return self._known_for == (self._fence.owner, collectives.is_initialized())

    @property
    def is_writer(self) -> bool:
        """True if this rank writes for all ranks with the same storage."""
        return collectives.ranks()[0] == (self.group.ranks[0] if self._is_known else 0)

    @property
    def may_share(self) -> bool:
        """True if the ranks divide a large state; then all ranks must save."""
        return self.shares and collectives.world_size() > 1

    @property
    def participates(self) -> bool:
        """True if this rank has a part in a save."""
        return self.is_writer or self.may_share or self.is_sharded
