"""Deletes snapshots that retention does not keep, and what dead writers have left.

A folder without a manifest belongs to a living writer until a later owner has resumed: then its
writer commits nothing any more.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ddpjob_trainer.snapshots.model.fencing import Fence, Owner, is_overtaken
from ddpjob_trainer.snapshots.model.retention import steps_to_delete
from ddpjob_trainer.snapshots.storage.judged import JudgedSnapshots, steps_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddpjob_trainer.snapshots.storage.base import FileStore
    from ddpjob_trainer.snapshots.storage.stored import StoredSnapshot

STALE_SECONDS = 24 * 3600.0  # from the tensors to the manifest, far more than a write takes

_log = logging.getLogger("ddpjob")


class Cleanup:
    """The deletions in one storage. Each method may raise OSError."""

    def __init__(self, files: FileStore, snapshots: JudgedSnapshots) -> None:
        self._files = files
        self._snapshots = snapshots

    def retain(self, newest: int, keep: int, owner: Owner | None = None) -> None:
        """Delete snapshots beyond `keep`, fenced ones and abandoned ones.

        Delete none of a job other than `owner`'s, and no damaged one or one of a newer format.
        """
        fences = self._snapshots.fences.all()
        copies = self._deletable(owner, fences)
        complete = self._snapshots.complete([copy for copy in copies if copy.manifest], fences)
        gone = steps_to_delete(steps_of(complete), newest, keep)
        for copy in copies:
            is_more = copy.step in gone and copy in complete
            is_fenced = self._snapshots.is_fenced(copy, fences)
            if is_more or (is_fenced and self._snapshots.is_whole(copy)):
                self._delete(copy)
        self.clear(fences, owner)

    def clear(self, fences: Sequence[Fence], owner: Owner | None) -> bool:
        """Delete what writers have left that will not commit it; return whether there was any."""
        copies = self._deletable(owner, fences)
        now = max((copy.written for copy in copies), default=0.0)  # by the storage's own clock
        abandoned = [
            copy
            for copy in copies
            if (copy.is_half and is_overtaken(self._snapshots.origin(copy, fences), fences))
            or (copy.manifest is None and now - copy.written > STALE_SECONDS)
        ]
        for copy in abandoned:
            self._delete(copy)
        return bool(abandoned)

    def drop_for(self, fence: Fence) -> bool:
        """Delete the oldest snapshot for the writer behind this fence, if it is not fenced."""
        self._snapshots.fences.check(fence)
        return self.drop_oldest(fence.owner)

    def drop_oldest(self, owner: Owner) -> bool:
        """Delete the oldest whole snapshot of `owner`'s job; return False if there is only one."""
        fences = self._snapshots.fences.all()
        shown = [copy for copy in self._deletable(owner, fences) if copy.manifest]
        complete = self._snapshots.complete(shown, fences)
        steps = steps_of(complete)
        if len(steps) < 2:
            return False
        _log.warning("%s is full: the snapshot of step %d is deleted", self._files.where, steps[-1])
        for copy in complete:
            if copy.step == steps[-1]:
                self._delete(copy)
        return True

    def used(self) -> int:
        """Return the bytes in the volume, without those of snapshots that are being written."""
        begun = sum(copy.size for copy in self._snapshots.stored.all() if copy.manifest is None)
        return self._files.used() - begun

    def discard(self, folder: str) -> None:
        """Delete what this writer has begun."""
        for copy in self._snapshots.stored.all():
            if copy.folder == folder:
                self._delete(copy)

    def _delete(self, copy: StoredSnapshot) -> None:
        self._files.delete_folder(copy.folder, copy.names)

    def _deletable(self, owner: Owner | None, fences: Sequence[Fence]) -> list[StoredSnapshot]:
        """Return all folders but those of jobs other than `owner`'s. Raise OSError."""

        def is_of_other_job(copy: StoredSnapshot) -> bool:
            writer = self._snapshots.origin(copy, fences).writer
            return owner is not None and writer is not None and writer.is_of_other_job(owner)

        return [copy for copy in self._snapshots.stored.all() if not is_of_other_job(copy)]
