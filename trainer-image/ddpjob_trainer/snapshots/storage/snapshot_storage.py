"""The snapshots of one storage, a directory or a bucket; existing files are never changed.

Each snapshot has its own folder below its step, named by its writer's fence and a random word. The
tensors are written first, the manifest last: the manifest commits the snapshot. The manifest's name
contains its own checksum. So no writer can replace or delete another writer's files, even if it
writes late. The fences decide which of several snapshots counts, and which folder without a
manifest is abandoned. Only fences need an operation that succeeds for a single process.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from ddpjob_trainer.errors import SnapshotError
from ddpjob_trainer.snapshots.model import manifest
from ddpjob_trainer.snapshots.model.fencing import Fence, Owner
from ddpjob_trainer.snapshots.model.manifest import TENSORS, UnusableError
from ddpjob_trainer.snapshots.model.selection import Candidate, StorageContents
from ddpjob_trainer.snapshots.model.write_plan import (
    ALONE,
    PartsMissingError,
    WriteAssignment,
    part_failure,
    part_report,
    wait_for_parts,
)
from ddpjob_trainer.snapshots.storage import volume
from ddpjob_trainer.snapshots.storage.cleanup import Cleanup
from ddpjob_trainer.snapshots.storage.judged import JudgedSnapshots, steps_of
from ddpjob_trainer.snapshots.storage.stored import OpenSnapshot, folder_of, manifest_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from ddpjob_trainer.collectives import StorageGroup
    from ddpjob_trainer.snapshots.model.staging import StagedState
    from ddpjob_trainer.snapshots.storage.base import FileStore
    from ddpjob_trainer.tensors.file_digest import FileDigest
    from ddpjob_trainer.transfer.broadcast import ChooseMemory, StateSender

LAST_NUMBER = 10**12  # later than that of each fence

_log = logging.getLogger("ddpjob")


class SnapshotInfo(NamedTuple):
    """The size and the time of a snapshot, for people."""

    size: int
    written: float  # seconds since 1970


class SnapshotStorage:
    """Snapshots by step. If a step's snapshot is unusable, methods raise UnusableError."""

    def __init__(self, files: FileStore, keep: int) -> None:
        """Take the files, and the number of snapshots to keep."""
        self.files = files
        self.where = files.where
        self.how_to_reset = files.how_to_reset
        self.keep = keep
        self._snapshots = JudgedSnapshots(files)
        self._cleanup = Cleanup(files, self._snapshots)

    def group(self) -> StorageGroup:
        """Return the ranks with this storage. Raise RuntimeError if the group breaks.

        Each rank must call this.
        """
        return self.files.group()

    # --- writing ----------------------------------------------------------------------------------

    def fence(self, owner: Owner, step: int) -> Fence:
        """Fence all owners but `owner`, which resumes from `step`. Raise FencedError or OSError."""

        def drop() -> bool:
            """Delete what this fence will limit, or a snapshot."""
            fences = [*self._snapshots.fences.all(), Fence(LAST_NUMBER, owner, step)]
            return self._cleanup.clear(fences, owner) or self._cleanup.drop_oldest(owner)

        fence = volume.write_with_space(lambda: self._snapshots.fences.add(owner, step), drop)
        with contextlib.suppress(OSError):
            self._cleanup.clear(self._snapshots.fences.all(), owner)
        return fence

    def make_room(self, size: int, fence: Fence | None) -> None:
        """Delete the oldest snapshots until `size` bytes fit; without a fence, only check.

        Raise SnapshotError, also FencedError, or OSError.
        """
        if self.files.limit is not None:
            drop = None if fence is None else partial(self._cleanup.drop_for, fence)
            volume.make_room(self.where, size, self.files.limit, self._cleanup.used, drop)

    def commit(
        self, step: int, content: StagedState, fence: Fence, part: WriteAssignment = ALONE
    ) -> None:
        """Commit the snapshot durably unless it exists; alone, or as the first of several writers.

        Raise OSError, and FencedError if another owner has resumed: then nothing is deleted. With
        several writers, raise PartsMissingError or SnapshotError, too.
        """
        folder = folder_of(step, fence.number, part.attempt_id or secrets.token_hex(4))
        records = [
            f"{folder}/{manifest.part_record_name(number)}" for number in range(1, part.writers)
        ]
        if self._snapshots.counts(step):
            with contextlib.suppress(OSError):
                self._cleanup.discard(folder)
            return
        drop = partial(self._cleanup.drop_for, fence)
        try:
            files = {TENSORS: self._upload(f"{folder}/{TENSORS}", content, drop)}
            files |= wait_for_parts(part, lambda number: self.files.get(records[number - 1]))
            record = content.record(files, fence)
            self._snapshots.fences.check(fence)
            name = f"{folder}/{manifest_name(record)}"
            volume.write_with_space(lambda: self.files.put(name, record), drop)
        except BaseException as error:
            # If a request has failed, the manifest may exist nevertheless: the tensors stay.
            if not (isinstance(error, OSError) and self.files.is_transient(error)):
                with contextlib.suppress(OSError):
                    self._cleanup.discard(folder)
            if isinstance(error, FileNotFoundError):
                self._snapshots.fences.check(fence)  # the successor has deleted the folder
            raise
        self._snapshots.fences.check(fence)  # a successor may rely on an earlier one: delete none
        self.files.delete(*records)
        self._cleanup.retain(step, self.keep, fence.owner)

    def write_part(self, step: int, content: StagedState, part: WriteAssignment) -> None:
        """Write a part durably for the first writer. Raise PartsMissingError or OSError."""
        folder = folder_of(step, part.fence, part.attempt_id)
        tensors = f"{folder}/{manifest.part_name(part.number)}"
        record = f"{folder}/{manifest.part_record_name(part.number)}"

        def drop() -> bool:
            fences = [fence for fence in self._snapshots.fences.all() if fence.number == part.fence]
            return any(map(self._cleanup.drop_for, fences))

        try:
            written = self._upload(tensors, content, drop)
            self.files.put(record, part_report(written, part.outlines[part.number]))
        except FileNotFoundError as error:
            raise PartsMissingError from error  # the first writer has deleted the folder
        except (OSError, SnapshotError) as error:
            with contextlib.suppress(OSError):
                self.files.delete(tensors)  # a full volume then has room for the record
                self.files.put(record, part_failure(error))
            raise

    def _upload(self, name: str, content: StagedState, drop: Callable[[], bool]) -> FileDigest:
        if not self.files.passes_errors:
            content.finish_copying()
        size = content.tensors_size
        return volume.write_with_space(
            lambda: content.stream_to(lambda chunks: self.files.upload(name, chunks, size)), drop
        )

    # --- existing snapshots -----------------------------------------------------------------------

    def steps(self, chooser: Owner | None = None) -> list[int]:
        """Return the steps that have a snapshot that is not fenced, newest first. Raise OSError.

        The fences of `chooser`, which still selects its snapshot, do not limit the result.
        """
        fences = self._snapshots.fences.all()
        return steps_of(
            copy
            for copy in self._snapshots.shown()
            if not self._snapshots.is_fenced(copy, fences, chooser)
        )

    def all_steps(self) -> list[int]:
        """Return the steps of all snapshots, newest first. Raise OSError."""
        return steps_of(self._snapshots.shown())

    def complete(self) -> list[int]:
        """Return the steps of whole snapshots that count, newest first; read no tensors."""
        return steps_of(
            self._snapshots.complete(self._snapshots.shown(), self._snapshots.fences.all())
        )

    def list_candidates(self, ranks: tuple[int, ...], chooser: Owner) -> StorageContents:
        """Return the snapshots from which `chooser` may select. Raise OSError."""
        offers: list[Candidate] = []
        unusable: list[str] = []
        fences = self._snapshots.fences.all()
        for copy in self._snapshots.shown():
            if self._snapshots.is_fenced(copy, fences, chooser):
                continue
            try:
                offers.append(manifest.candidate_of(self._snapshots.manifest(copy)))
            except UnusableError as why:
                unusable.append(f"{self.where}/{copy.folder}: {why}")
                _log.warning("ignoring snapshot %s", unusable[-1])
        return StorageContents(ranks, tuple(offers), tuple(fences), tuple(unusable))

    def read(
        self,
        step: int,
        digest: str | None = None,
        sender: StateSender | None = None,
        choose: ChooseMemory | None = None,
    ) -> dict[str, Any]:
        """Return the verified state of the candidate with this digest. Raise OSError.

        The `sender` sends the state during the read. `choose` returns memory for tensors.
        """
        why = UnusableError("there is no such snapshot")
        for copy in self._snapshots.of(step):
            try:
                if digest in (None, manifest.candidate_of(self._snapshots.manifest(copy)).digest):
                    return self._snapshots.stored.state(copy, sender, choose)
            except UnusableError as error:
                why = error
                if sender is not None and sender.has_begun:
                    break
        raise why

    def open(self, step: int, digest: str) -> OpenSnapshot:
        """Return the candidate with this digest, for reads of parts. Raise OSError."""
        for copy in self._snapshots.of(step):
            with contextlib.suppress(UnusableError):
                found = self._snapshots.stored.open(copy)
                if manifest.candidate_of(found.manifest).digest == digest:
                    return found
        raise UnusableError("it has just been deleted")

    def check(self, step: int, *, content: bool = True) -> dict[str, Any]:
        """Return the manifest; with `content`, verify all bytes of the tensors, else sizes."""
        why = UnusableError("there is no such snapshot")
        for copy in self._snapshots.of(step):
            try:
                found = self._snapshots.manifest(copy)
                if content:
                    self._snapshots.stored.verify(copy)
            except UnusableError as error:
                why = error
            else:
                return found
        raise why

    def info(self, step: int) -> SnapshotInfo:
        """Return the size and the time of a snapshot. Raise OSError."""
        copy = self._snapshots.of(step)[0]
        return SnapshotInfo(copy.size, copy.written)

    def prune(self) -> list[int]:
        """Delete snapshots that retention does not keep; return their steps. Raise OSError."""
        newest = next(iter(self.complete()), None)
        if newest is None:
            return []
        before = self.all_steps()
        self._cleanup.retain(newest, self.keep)
        return sorted({*before} - {*self.all_steps()})

    def name(self, step: int) -> str:
        """Return the snapshot's name for log lines and errors."""
        return f"{self.where}/{manifest.name_of(step)}"
