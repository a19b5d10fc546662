"""The right to add snapshots: this membership's fence, from the step of its resume on.

A job writes its durable fence at load, or before its first save.
"""

from __future__ import annotations

import logging
import os
import secrets
from typing import TYPE_CHECKING

from ddpjob_protocol.environment import ENV_JOB_UID, ENV_MEMBERSHIP
from ddpjob_trainer.snapshots.model.fencing import Fence, Owner

if TYPE_CHECKING:
    from ddpjob_trainer.snapshots.storage.base import SnapshotStorage

_log = logging.getLogger("ddpjob")


class WriterFence:
    """The fence of one process in one storage."""

    def __init__(self, storage: SnapshotStorage) -> None:
        self._storage = storage
        self._process = secrets.token_hex(4)
        self._fence: Fence | None = None
        self._from: int | None = None

    @property
    def owner(self) -> Owner:
        """The membership of this process, or the process itself if it has no membership."""
        membership = os.environ.get(ENV_MEMBERSHIP)
        if not membership:
            return Owner("", self._process)
        return Owner(os.environ.get(ENV_JOB_UID, "ddpjob"), membership)

    def resume_from(self, step: int) -> None:
        """Record the step from which this owner resumes."""
        self._from = step

    def fence(self) -> Fence:
        """Return this owner's fence; create it if there is none. Raise FencedError or OSError."""
        if self._fence is None or self._fence.owner != self.owner:
            step = self._from
            if step is None:
                step = next(iter(self._storage.complete()), 0)
            self._fence = self._storage.fence(self.owner, step)
        return self._fence

    def begin(self, step: int, existing_steps: list[int], *, exclusive: bool) -> bool:
        """Fence all other writers; return True if another writer has just added a snapshot.

        Only an `exclusive` call creates the fence here. Otherwise the load may be read-only, and
        the first save creates the fence.
        """
        self._from, self._fence = step, None
        if not exclusive:
            return False
        try:
            self.fence()
        except OSError as error:
            _log.warning("%s: no fence until a snapshot is saved: %s", self._storage.where, error)
            return False
        return bool({*self._storage.all_steps()} - {*existing_steps})
