"""Snapshots in an object store, which has no rename, so existing objects are never changed.

Each snapshot has its own folder below its step, named by its writer's fence and a random word. The
tensors are written first, the manifest last: the manifest commits the snapshot. The manifest's name
contains its own checksum. So no writer can replace or delete another writer's objects, even if it
writes late. The fences decide which of several snapshots counts. Only fences need a request that
succeeds for a single process.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from ddpjob_trainer.errors import SnapshotError
from ddpjob_trainer.snapshots.model import manifest
from ddpjob_trainer.snapshots.model.fencing import Fence, FenceLog, Origin, Owner, is_fenced
from ddpjob_trainer.snapshots.model.manifest import TENSORS, UnusableError
from ddpjob_trainer.snapshots.model.retention import steps_to_delete
from ddpjob_trainer.snapshots.model.selection import Candidate, StorageContents
from ddpjob_trainer.snapshots.model.write_plan import (
    ALONE,
    WriteAssignment,
    part_failure,
    part_report,
    wait_for_parts,
)
from ddpjob_trainer.snapshots.storage.base import OpenSnapshot, SnapshotInfo
from ddpjob_trainer.snapshots.storage.object_fences import ObjectFences
from ddpjob_trainer.snapshots.storage.object_snapshot import (
    ObjectListing,
    StoredSnapshot,
    folder_of,
    record_name,
)
from ddpjob_trainer.snapshots.storage.obstore_client import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ddpjob_trainer.collectives import StorageGroup
    from ddpjob_trainer.snapshots.model.staging import StagedState
    from ddpjob_trainer.snapshots.storage.obstore_client import ObjectClient
    from ddpjob_trainer.tensors.file_digest import FileDigest
    from ddpjob_trainer.transfer.broadcast import StateSender

STALE_AFTER = timedelta(days=1)  # from the tensors to the manifest, far more than a write takes

_log = logging.getLogger("ddpjob")


class ObjectStorage:
    """The snapshots below one prefix, by step."""

    def __init__(self, objects: ObjectClient, keep: int) -> None:
        self._objects = objects
        self.where = objects.uri
        self.how_to_reset = "give another prefix (spec.snapshot.uri)"
        self.keep = keep
        self._fences = FenceLog(ObjectFences(objects))
        self._copies = ObjectListing(objects)

    def group(self) -> StorageGroup:
        """Return the ranks: all share the store; the first rank of each node reads and sends."""
        from ddpjob_trainer import collectives  # noqa: PLC0415 - a list of snapshots needs no torch

        return collectives.single_group()

    def fence(self, owner: Owner, step: int) -> Fence:
        """Fence all owners but `owner`, which resumes from `step`. Raise FencedError or OSError."""
        return self._fences.add(owner, step)

    def make_room(self, size: int, fence: Fence | None) -> None:
        """Return at once: an object store has no limit."""

    def commit(
        self, step: int, content: StagedState, fence: Fence, part: WriteAssignment = ALONE
    ) -> None:
        """Commit the snapshot unless it exists; alone, or as the first of several writers.

        Raise OSError, and FencedError if another owner has resumed: then nothing is deleted. With
        several writers, raise PartsMissingError or SnapshotError, too.
        """
        folder = folder_of(step, fence.number, part.attempt_id or secrets.token_hex(4))
        words = [
            f"{folder}/{manifest.part_record_name(number)}" for number in range(1, part.writers)
        ]
        if self._counts(step):
            return  # retention clears the other ranks' parts like those of a dead writer
        own = f"{folder}/{TENSORS}"
        try:
            files = {TENSORS: self._upload(own, content)}
            files |= wait_for_parts(part, lambda number: self._objects.get(words[number - 1]))
            record = content.record(files, fence)
            self._fences.check(fence)
        except BaseException:
            with contextlib.suppress(OSError):
                self._objects.delete(own)
            raise
        # If this request fails, the tensors stay, because the manifest may exist nevertheless.
        self._objects.put(f"{folder}/{record_name(record)}", record)
        self._fences.check(fence)  # a successor may rely on an earlier one: delete none
        self._objects.delete(*words)
        self._retain(step, fence.owner)

    def write_part(self, step: int, content: StagedState, part: WriteAssignment) -> None:
        """Write a part for the first writer. Raise OSError."""
        folder = folder_of(step, part.fence, part.attempt_id)
        word = f"{folder}/{manifest.part_record_name(part.number)}"
        try:
            written = self._upload(f"{folder}/{manifest.part_name(part.number)}", content)
        except (OSError, SnapshotError) as error:
            with contextlib.suppress(OSError):
                self._objects.put(word, part_failure(error))
            raise
        self._objects.put(word, part_report(written, part.outlines[part.number]))

    def _upload(self, name: str, content: StagedState) -> FileDigest:
        content.finish_copying()  # an error of the copy would not pass through an upload
        size = content.tensors_size
        return content.stream_to(lambda chunks: self._objects.upload(name, chunks, size))

    def steps(self, chooser: Owner | None = None) -> list[int]:
        """Return the steps that have a snapshot that is not fenced, newest first. Raise OSError.

        The fences of `chooser`, which still selects its snapshot, do not limit the result.
        """
        fences = self._fences.all()
        return _steps(copy for copy in self._shown() if not _is_fenced(copy, fences, chooser))

    def all_steps(self) -> list[int]:
        """Return the steps of all snapshots, newest first. Raise OSError."""
        return _steps(self._shown())

    def complete(self) -> list[int]:
        """Return the steps of whole snapshots that count, newest first; read no tensors."""
        return _steps(self._complete(self._shown(), self._fences.all()))

    def list_candidates(self, ranks: tuple[int, ...], chooser: Owner) -> StorageContents:
        """Return the snapshots from which `chooser` may select. Raise OSError."""
        offers: list[Candidate] = []
        unusable: list[str] = []
        fences = self._fences.all()
        for copy in self._shown():
            if _is_fenced(copy, fences, chooser):
                continue
            try:
                offers.append(manifest.candidate_of(self._copies.manifest(copy)))
            except UnusableError as why:
                unusable.append(f"{self._objects.uri}/{copy.folder}: {why}")
                _log.warning("ignoring snapshot %s", unusable[-1])
        return StorageContents(ranks, tuple(offers), tuple(fences), tuple(unusable))

    def read(
        self, step: int, digest: str | None = None, sender: StateSender | None = None
    ) -> dict[str, Any]:
        """Return the verified state. Raise UnusableError or OSError."""
        del sender  # the loader sends the state after the read
        why = UnusableError("there is no such snapshot")
        for copy in self._of(step):
            try:
                if digest in (None, manifest.candidate_of(self._copies.manifest(copy)).digest):
                    return self._copies.state(copy)
            except UnusableError as error:
                why = error
        raise why

    def open(self, step: int, digest: str) -> OpenSnapshot:
        """Return the candidate, for reads of parts. Raise UnusableError or OSError."""
        for copy in self._of(step):
            with contextlib.suppress(UnusableError):
                found = self._copies.manifest(copy)
                if manifest.candidate_of(found).digest == digest:
                    return OpenSnapshot(found, partial(self._copies.read_range, copy))
        raise UnusableError("it has just been deleted")

    def check(self, step: int, *, content: bool = True) -> dict[str, Any]:
        """Return the manifest. Raise UnusableError or OSError."""
        why = UnusableError("there is no such snapshot")
        for copy in self._of(step):
            try:
                found = self._copies.manifest(copy)
                if content:
                    self._copies.verify(copy)
            except UnusableError as error:
                why = error
            else:
                return found
        raise why

    def info(self, step: int) -> SnapshotInfo:
        """Return the size and the time of a snapshot. Raise OSError."""
        copy = self._of(step)[0]
        return SnapshotInfo(copy.size, copy.written.written.timestamp())

    def prune(self) -> list[int]:
        """Delete snapshots that retention does not keep; return their steps. Raise OSError."""
        newest = next(iter(self.complete()), None)
        if newest is None:
            return []
        before = self.all_steps()
        self._retain(newest)
        return sorted({*before} - {*self.all_steps()})

    def name(self, step: int) -> str:
        """Return the snapshot's name for log lines and errors."""
        return f"{self._objects.uri}/{manifest.name_of(step)}"

    def explain_error(self, error: OSError, size: int) -> tuple[str, str]:
        """Return the reason why a snapshot could not be saved, and the remedy."""
        del size
        assert isinstance(error, StoreError)
        return error.cause, error.remedy

    def is_transient(self, error: OSError) -> bool:
        """Return whether a later attempt may succeed without a repair."""
        return isinstance(error, StoreError) and error.is_unavailable

    # --- existing snapshots -----------------------------------------------------------------------

    def _shown(self) -> list[StoredSnapshot]:
        """Return the snapshots with a manifest. Raise OSError."""
        return [copy for copy in self._copies.all() if copy.manifest]

    def _of(self, step: int) -> list[StoredSnapshot]:
        """Return the snapshots of one step, those that count first. Raise OSError."""
        fences = self._fences.all()
        copies = [copy for copy in self._shown() if copy.step == step]
        return sorted(copies, key=lambda copy: _is_fenced(copy, fences))

    def _complete(
        self, copies: Sequence[StoredSnapshot], fences: Sequence[Fence]
    ) -> list[StoredSnapshot]:
        return [c for c in copies if self._is_whole(c) and not _is_fenced(c, fences)]

    def _is_whole(self, copy: StoredSnapshot) -> bool:
        try:
            self._copies.manifest(copy)
        except UnusableError:
            return False
        return True

    def _counts(self, step: int) -> bool:
        """Return whether a snapshot of this step counts and is intact. Raise OSError."""
        fences = self._fences.all()
        for copy in self._complete([c for c in self._shown() if c.step == step], fences):
            with contextlib.suppress(UnusableError):
                self._copies.verify(copy)
                return True
        return False

    # --- retention --------------------------------------------------------------------------------

    def _retain(self, newest: int, owner: Owner | None = None) -> None:
        """Delete snapshots beyond `keep`, fenced ones and abandoned ones. Raise OSError.

        Delete none of a job other than `owner`'s.
        """
        fences = self._fences.all()
        copies = [c for c in self._copies.all() if not self._is_of_other_job(c, owner, fences)]
        complete = self._complete([copy for copy in copies if copy.manifest], fences)
        gone = steps_to_delete(_steps(complete), newest, self.keep)
        now = max(copy.written.written for copy in copies)  # by the store's own clock
        for copy in copies:
            is_stale = copy.manifest is None and now - copy.written.written > STALE_AFTER
            is_more = copy.step in gone and copy in complete
            if is_stale or is_more or (_is_fenced(copy, fences) and self._is_known(copy)):
                self._objects.delete(*copy.names)

    def _is_of_other_job(
        self, copy: StoredSnapshot, owner: Owner | None, fences: Sequence[Fence]
    ) -> bool:
        writer = next((fence.owner for fence in fences if fence.number == copy.fence), None)
        if writer is None and copy.manifest is not None:
            with contextlib.suppress(UnusableError):
                writer = manifest.writer_of(self._copies.manifest(copy))
        return owner is not None and writer is not None and writer.is_of_other_job(owner)

    def _is_known(self, copy: StoredSnapshot) -> bool:
        """Return False for a damaged or newer format, which stays for inspection."""
        is_half = copy.manifest is None or not copy.files
        return is_half or self._is_whole(copy)


def _is_fenced(copy: StoredSnapshot, fences: Sequence[Fence], chooser: Owner | None = None) -> bool:
    """Return whether a snapshot is fenced; its fence, if it still exists, names the writer."""
    writer = next((fence.owner for fence in fences if fence.number == copy.fence), None)
    return is_fenced(Origin(copy.step, writer, copy.fence), fences, chooser)


def _steps(copies: Iterable[StoredSnapshot]) -> list[int]:
    return sorted({copy.step for copy in copies}, reverse=True)
