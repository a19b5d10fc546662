"""The right to add snapshots: this membership's fence, from the step of its resume on.

A job writes its durable fence at load, or before its first save.
"""

from __future__ import annotations

import logging
import os
import secrets
from typing import TYPE_CHECKING

from ddpjob_protocol.environment import ENV_JOB, ENV_JOB_UID, ENV_MEMBERSHIP
from ddpjob_trainer.errors import SnapshotError
from ddpjob_trainer.snapshots.model.fencing import Fence, Owner

if TYPE_CHECKING:
    from ddpjob_trainer.snapshots.storage.snapshot_storage import SnapshotStorage

_log = logging.getLogger("ddpjob")


class WriterFence:
    """The fence of one process in one storage."""

    def __init__(self, storage: SnapshotStorage, *, other_job: bool) -> None:
        """Take the storage; with `other_job`, allow a resume from a job of another name."""
        self._storage = storage
        self._other_job = other_job
        self._loaded: Owner | None = None  # wrote the snapshot that was loaded
        self._process = secrets.token_hex(4)
        self._fence: Fence | None = None
        self._from: int | None = None

    @property
    def resumed_from(self) -> int | None:
        """The step from which this owner resumes; None if nothing was loaded."""
        return self._from

    @property
    def owner(self) -> Owner:
        """The membership of this process, or the process itself if it has no membership."""
        membership = os.environ.get(ENV_MEMBERSHIP)
        if not membership:
            return Owner("", self._process)
        return Owner(os.environ.get(ENV_JOB_UID, "ddpjob"), membership, os.environ.get(ENV_JOB, ""))

    def resume_from(self, step: int) -> None:
        """Record the step from which this owner resumes."""
        self._from = step

    def fence(self) -> Fence:
        """Return this owner's fence; create it if there is none. Raise SnapshotError or OSError."""
        if self._fence is None or self._fence.owner != self.owner:
            if self._from is None:
                self._refuse_existing_steps()
            self.check_job(self._loaded)
            self._fence = self._storage.fence(self.owner, self._from or 0)
        return self._fence

    def _refuse_existing_steps(self) -> None:
        """Raise SnapshotError if a run that has loaded nothing would save beside snapshots.

        A fence from step 0 would be the alternative: it would make the earlier run's snapshots
        worthless, and one forgotten load() would delete them.
        """
        existing = self._storage.steps()
        if existing:
            raise SnapshotError(
                f"There are snapshots in {self._storage.where}, the newest of step {existing[0]}, and "
                "this run has not loaded them: the next start would resume from them and not from "
                "this run. Call load() before the first save(), or save in another directory. To "
                f"start over: {self._storage.how_to_reset}"
            )

    def check_job(self, writer: Owner | None) -> None:
        """Raise SnapshotError if the writer of a snapshot is a job of another name."""
        if writer is None or self._other_job or not writer.is_of_other_job(self.owner):
            return
        raise SnapshotError(
            f"The newest snapshot in {self._storage.where} is of job {writer.name}, and this job is "
            f"{self.owner.name}: two jobs may not mix their snapshots. Give this job a directory or "
            "prefix of its own. To continue that job's training in this job, call "
            "Snapshots(other_job=True)."
        )

    def begin(
        self, step: int, existing_steps: list[int], writer: Owner | None, *, exclusive: bool
    ) -> bool:
        """Fence all other writers; return True if another writer has just added a snapshot.

        `writer` is that of the snapshot to load, if there is one. Raise SnapshotError.

        Only an `exclusive` call creates the fence here. Otherwise the load may be read-only, and
        the first save creates the fence.
        """
        self._from, self._fence, self._loaded = step, None, writer
        if writer is not None and exclusive and writer.job not in ("", self.owner.job):
            _log.warning(
                "%s: resuming from step %d of an earlier job: %s, uid %s",
                self._storage.where, step, writer, writer.job,
            )  # fmt: skip
        if not exclusive:
            return False
        try:
            self.fence()
        except OSError as error:
            _log.warning("%s: no fence until a snapshot is saved: %s", self._storage.where, error)
            return False
        return bool({*self._storage.all_steps()} - {*existing_steps})
