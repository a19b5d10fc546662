"""Snapshots in an object store, which has no rename: what is there is never changed.

Each snapshot has a folder of its own below its step, named by its writer's fence and a random
word. The tensors go first, the manifest last: with it the snapshot exists. The manifest's name
holds its own checksum. So no writer can replace or delete what another one wrote, however late it
comes; which of several counts is told by their fences. Only these need a request that succeeds
for one alone.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from ddpjob_trainer import collectives
from ddpjob_trainer.collectives import StorageGroup
from ddpjob_trainer.errors import SnapshotError
from ddpjob_trainer.snapshots.model import manifest
from ddpjob_trainer.snapshots.model.fencing import Fence, FenceLog, Owner, is_fenced
from ddpjob_trainer.snapshots.model.manifest import TENSORS, UnusableError
from ddpjob_trainer.snapshots.model.retention import steps_to_delete
from ddpjob_trainer.snapshots.model.selection import Candidate, StorageContents
from ddpjob_trainer.snapshots.model.write_plan import (
    ALONE,
    WriteAssignment,
    part_failure,
    wait_for_parts,
)
from ddpjob_trainer.snapshots.model.write_plan import part_report as tell
from ddpjob_trainer.snapshots.storage.base import SnapshotInfo
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

    from ddpjob_trainer.snapshots.model.staging import StagedState
    from ddpjob_trainer.snapshots.storage.obstore_client import ObjectClient
    from ddpjob_trainer.tensors.safetensors_writer import FileDigest
    from ddpjob_trainer.transfer.broadcast import StateSender

PATIENCE = timedelta(days=1)  # from a snapshot's tensors to its manifest: far more than it takes

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
        """Every rank sees it; the first of each node reads, and sends to the others."""
        return collectives.single_group()

    def fence(self, owner: Owner, step: int) -> Fence:
        """From now on `owner` alone goes on, from this step. Raises FencedError and OSError."""
        return self._fences.add(owner, step)

    def commit(
        self, step: int, content: StagedState, fence: Fence, part: WriteAssignment = ALONE
    ) -> None:
        """Makes the snapshot exist, unless it already does; alone, or as the first of several.

        Raises OSError, and FencedError if somebody else has gone on: then nothing is deleted.
        Of several writers also PartsMissingError and SnapshotError.
        """
        folder = folder_of(step, fence.number, part.attempt_id or secrets.token_hex(4))
        words = [
            f"{folder}/{manifest.part_record_name(number)}" for number in range(1, part.writers)
        ]
        if self._counts(step):
            return  # what others have written meanwhile goes as that of a dead writer does
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
        # Whatever becomes of this request, the tensors stay: it may have succeeded.
        self._objects.put(f"{folder}/{record_name(record)}", record)
        self._fences.check(fence)  # a successor may rely on an earlier one: delete none
        self._objects.delete(*words)
        self._retain(step)

    def write_part(self, step: int, content: StagedState, part: WriteAssignment) -> None:
        """Writes what the first one waits for. Raises OSError."""
        folder = folder_of(step, part.fence, part.attempt_id)
        word = f"{folder}/{manifest.part_record_name(part.number)}"
        try:
            written = self._upload(f"{folder}/{manifest.part_name(part.number)}", content)
        except (OSError, SnapshotError) as error:
            with contextlib.suppress(OSError):
                self._objects.put(word, part_failure(str(error)))
            raise
        self._objects.put(word, tell(written, part.outlines[part.number]))

    def _upload(self, name: str, content: StagedState) -> FileDigest:
        content.finish_copying()  # what it raises would not come through an upload
        size = content.tensors_size
        return content.stream_to(lambda chunks: self._objects.upload(name, chunks, size))

    def steps(self, chooser: Owner | None = None) -> list[int]:
        """Steps of which one may be gone on from, newest first. Raises OSError.

        Who still chooses from which one is not bound by a fence of its own.
        """
        fences = [fence for fence in self._fences.all() if fence.owner != chooser]
        return _steps(copy for copy in self._shown() if not _is_overtaken(copy, fences))

    def all_steps(self) -> list[int]:
        """Steps of all that there are, newest first. Raises OSError."""
        return _steps(self._shown())

    def complete(self) -> list[int]:
        """Steps of which one counts and looks whole, newest first, without reading tensors."""
        return _steps(self._complete(self._shown(), self._fences.all()))

    def list_candidates(self, ranks: tuple[int, ...], chooser: Owner) -> StorageContents:
        """What there is for `chooser` to choose from. Raises OSError."""
        offers: list[Candidate] = []
        unusable: list[str] = []
        fences = self._fences.all()
        others = [fence for fence in fences if fence.owner != chooser]
        for copy in self._shown():
            if _is_overtaken(copy, others):
                continue
            try:
                offers.append(manifest.candidate_of(self._copies.manifest(copy)))
            except UnusableError as why:
                unusable.append(f"{self._objects.uri}/{copy.folder}: {why}")
                _log.warning("ignoring snapshot %s", unusable[-1])
        return StorageContents(ranks, tuple(offers), tuple(fences), tuple(unusable))

    def read(
        self, step: int, digest: str | None = None, giver: StateSender | None = None
    ) -> dict[str, Any]:
        """The state, verified. Raises UnusableError and OSError."""
        del giver  # sends it when it is there
        why = UnusableError("there is no such snapshot")
        for copy in self._of(step):
            try:
                if digest in (None, manifest.candidate_of(self._copies.manifest(copy)).digest):
                    return self._copies.state(copy)
            except UnusableError as error:
                why = error
        raise why

    def check(self, step: int, *, content: bool = True) -> dict[str, Any]:
        """The manifest. Raises UnusableError and OSError."""
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
        """From outside. Raises OSError."""
        copy = self._of(step)[0]
        return SnapshotInfo(copy.size, copy.written.written.timestamp())

    def prune(self) -> list[int]:
        """Delete what need not stay; returns the steps. Raises OSError."""
        newest = next(iter(self.complete()), None)
        if newest is None:
            return []
        before = self.all_steps()
        self._retain(newest)
        return sorted({*before} - {*self.all_steps()})

    def held_in_memory(self) -> int | None:
        """None: they lie elsewhere."""
        return None

    def name(self, step: int) -> str:
        """For people."""
        return f"{self._objects.uri}/{manifest.name_of(step)}"

    def explain_error(self, error: OSError, size: int) -> tuple[str, str]:
        """Why a snapshot could not be saved, and what to do."""
        del size
        assert isinstance(error, StoreError)
        return error.cause, error.remedy

    def is_transient(self, error: OSError) -> bool:
        """Whether a later try may succeed although nobody does anything."""
        return isinstance(error, StoreError) and error.is_away

    # --- what is there ----------------------------------------------------------------------------

    def _shown(self) -> list[StoredSnapshot]:
        """Those with a manifest. Raises OSError."""
        return [copy for copy in self._copies.all() if copy.manifest]

    def _of(self, step: int) -> list[StoredSnapshot]:
        """Those of one step, first those that count. Raises OSError."""
        fences = self._fences.all()
        copies = [copy for copy in self._shown() if copy.step == step]
        return sorted(copies, key=lambda copy: _is_overtaken(copy, fences))

    def _complete(
        self, copies: Sequence[StoredSnapshot], fences: Sequence[Fence]
    ) -> list[StoredSnapshot]:
        return [c for c in copies if self._is_whole(c) and not _is_overtaken(c, fences)]

    def _is_whole(self, copy: StoredSnapshot) -> bool:
        try:
            self._copies.manifest(copy)
        except UnusableError:
            return False
        return True

    def _counts(self, step: int) -> bool:
        """Whether there is one of this step, to the last byte. Raises OSError."""
        fences = self._fences.all()
        for copy in self._complete([c for c in self._shown() if c.step == step], fences):
            with contextlib.suppress(UnusableError):
                self._copies.verify(copy)
                return True
        return False

    # --- what goes --------------------------------------------------------------------------------

    def _retain(self, newest: int) -> None:
        """Delete what is superfluous, overtaken or abandoned. Raises OSError."""
        copies, fences = self._copies.all(), self._fences.all()
        complete = self._complete([copy for copy in copies if copy.manifest], fences)
        gone = steps_to_delete(_steps(complete), newest, self.keep)
        now = max(copy.written.written for copy in copies)  # by the store's own clock
        for copy in copies:
            is_stale = copy.manifest is None and now - copy.written.written > PATIENCE
            is_more = copy.step in gone and copy in complete
            if is_stale or is_more or (_is_overtaken(copy, fences) and self._is_known(copy)):
                self._objects.delete(*copy.names)

    def _is_known(self, copy: StoredSnapshot) -> bool:
        """Not so what is damaged, or of a newer version: that stays, for people to look at."""
        is_half = copy.manifest is None or not copy.files
        return is_half or self._is_whole(copy)


def _is_overtaken(copy: StoredSnapshot, fences: Iterable[Fence]) -> bool:
    return is_fenced(copy.step, copy.fence, fences)


def _steps(copies: Iterable[StoredSnapshot]) -> list[int]:
    return sorted({copy.step for copy in copies}, reverse=True)
