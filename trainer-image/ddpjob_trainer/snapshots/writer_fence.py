"""Whose turn it is to add to the snapshots: this membership's, from the step that it goes on from.

The fence that says so durably is put up when a job loads, or before the first save.
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
    """Of one process, in one place."""

    def __init__(self, place: SnapshotStorage) -> None:
        self._place = place
        self._process = secrets.token_hex(4)
        self._fence: Fence | None = None
        self._from: int | None = None

    @property
    def owner(self) -> Owner:
        """Who goes on: the membership that this process is in, or the process itself."""
        membership = os.environ.get(ENV_MEMBERSHIP)
        if not membership:
            return Owner("", self._process)
        return Owner(os.environ.get(ENV_JOB_UID, "ddpjob"), membership)

    def resume_from(self, step: int) -> None:
        """From this step."""
        self._from = step

    def fence(self) -> Fence:
        """Its own, put up if there is none yet. Raises FencedError and OSError."""
        if self._fence is None or self._fence.owner != self.owner:
            step = self._from
            if step is None:
                step = next(iter(self._place.complete()), 0)
            self._fence = self._place.fence(self.owner, step)
        return self._fence

    def begin(self, step: int, existing_steps: list[int], *, exclusive: bool) -> bool:
        """From now on nobody else adds to the place; whether somebody just did.

        Not `for_good`: perhaps this is only to look at, and who saves goes on.
        """
        self._from, self._fence = step, None
        if not exclusive:
            return False
        try:
            self.fence()
        except OSError as error:
            _log.warning("%s: no fence, before a snapshot is saved: %s", self._place.where, error)
            return False
        return bool({*self._place.all_steps()} - {*existing_steps})
