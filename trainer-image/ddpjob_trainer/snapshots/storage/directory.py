"""A directory of snapshot folders: atomic commits, retention, cleanup after dead writers.

Writers prepare a folder under a hidden name and rename the folder. Each writer holds a shared lock
meanwhile. If a process gets the exclusive lock, each hidden folder belongs to a dead writer. A
visible but unusable folder is never deleted, only renamed if its name is needed. Snapshots of a
fenced writer do not count (see `fencing`): no owner resumes from them, and retention deletes them.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import secrets
from functools import partial
from typing import TYPE_CHECKING

from ddpjob_trainer.errors import SnapshotError
from ddpjob_trainer.snapshots.model import manifest
from ddpjob_trainer.snapshots.model.fencing import Fence, FenceLog, Owner, is_fenced
from ddpjob_trainer.snapshots.model.manifest import UnusableError
from ddpjob_trainer.snapshots.model.retention import steps_to_delete
from ddpjob_trainer.snapshots.model.selection import StorageContents
from ddpjob_trainer.snapshots.model.write_plan import (
    ALONE,
    PartsMissingError,
    WriteAssignment,
    part_failure,
    part_report,
    wait_for_parts,
)
from ddpjob_trainer.snapshots.storage import dir_lock, durable, snapshot_dir, volume
from ddpjob_trainer.snapshots.storage.base import OpenSnapshot, SnapshotInfo
from ddpjob_trainer.snapshots.storage.dir_fences import DirectoryFences

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from ddpjob_trainer.collectives import StorageGroup
    from ddpjob_trainer.snapshots.model.staging import StagedState
    from ddpjob_trainer.tensors.file_digest import FileDigest
    from ddpjob_trainer.transfer.broadcast import StateSender


_log = logging.getLogger("ddpjob")


class DirectoryStorage:
    """The snapshots in one directory, by step."""

    def __init__(self, directory: Path, keep: int, limit: int | None = None) -> None:
        """Take the directory, the snapshots to keep, and the limit of its volume in bytes."""
        self._limit = limit
        self.directory = directory
        self.where = str(directory)
        self.how_to_reset = f"mv {directory} {directory}.old"
        self.keep = keep
        self._fences = FenceLog(DirectoryFences(directory))

    def group(self) -> StorageGroup:
        """Return the ranks with this directory. Raise RuntimeError if the group breaks.

        Each rank must call this.
        """
        from ddpjob_trainer import collectives  # noqa: PLC0415 - a list of snapshots needs no torch

        ranks, storages = collectives.ranks_sharing(self.directory)
        return collectives.StorageGroup(ranks, ranks, storages)

    def fence(self, owner: Owner, step: int) -> Fence:
        """Fence all owners but `owner`, which resumes from `step`. Raise FencedError or OSError."""
        with dir_lock.writing_in(self.directory):
            return volume.write_with_space(
                lambda: self._fences.add(owner, step), lambda: self._drop_oldest(owner)
            )

    def make_room(self, size: int, fence: Fence | None) -> None:
        """Delete the oldest snapshots until `size` bytes fit; without a fence, only check.

        Raise SnapshotError or OSError.
        """
        drop = None if fence is None else partial(self._drop_for, fence)
        volume.make_room(self.directory, size, self._limit, drop)

    def commit(
        self, step: int, content: StagedState, fence: Fence, part: WriteAssignment = ALONE
    ) -> None:
        """Commit the snapshot durably unless it exists; alone, or as the first of several writers.

        Raise OSError, and FencedError if another owner has resumed: then nothing is deleted. With
        several writers, raise PartsMissingError or SnapshotError, too.
        """
        target = self.directory / manifest.name_of(step)
        aside = dir_lock.hidden(target, part.attempt_id)
        if self._counts(target):
            with contextlib.suppress(OSError):
                dir_lock.discard(aside)
            return
        others = functools.cache(lambda: _others(aside, part))
        with dir_lock.writing_in(self.directory, part.attempt_id):
            try:
                aside.mkdir(exist_ok=part.writers > 1)
                volume.write_with_space(
                    lambda: snapshot_dir.write(aside, content, fence, others),
                    partial(self._drop_for, fence),
                )
                self._fences.check(fence)
                self._rename(aside, target)
            finally:
                with contextlib.suppress(OSError):
                    dir_lock.discard(aside)
            durable.sync(self.directory)
            self._fences.check(fence)  # a successor may rely on an earlier one: delete none
            self._retain(step, fence.owner)

    def write_part(self, step: int, content: StagedState, part: WriteAssignment) -> None:
        """Write a part durably for the first writer. Raise PartsMissingError or OSError."""
        aside = dir_lock.hidden(self.directory / manifest.name_of(step), part.attempt_id)
        with dir_lock.writing_in(self.directory, part.attempt_id):
            aside.mkdir(exist_ok=True)
            try:
                written = volume.write_with_space(
                    lambda: snapshot_dir.write_part(aside, content, part.number),
                    lambda: any(
                        self._drop_for(f) for f in self._fences.all() if f.number == part.fence
                    ),
                )
                snapshot_dir.write_part_record(
                    aside, part.number, part_report(written, part.outlines[part.number])
                )
            except (OSError, SnapshotError) as error:
                if not aside.exists():
                    raise PartsMissingError from error
                with contextlib.suppress(OSError):
                    snapshot_dir.write_part_record(aside, part.number, part_failure(error))
                raise

    def steps(self, chooser: Owner | None = None) -> list[int]:
        """Return the steps of all folders that are not fenced, newest first. Raise OSError.

        The fences of `chooser`, which still selects its snapshot, do not limit the result.
        """
        fences = self._fences.all()
        return [s for s in self.all_steps() if not _is_fenced(self.path(s), fences, chooser)]

    def list_candidates(self, ranks: tuple[int, ...], chooser: Owner) -> StorageContents:
        """Return the snapshots in this directory from which `chooser` may select. Raise OSError.

        Only sizes are compared: the reading rank must verify the contents.
        """
        offers, unusable = [], []
        for step in self.steps(chooser):
            try:
                offers.append(snapshot_dir.read_candidate(self.path(step)))
            except UnusableError as why:
                unusable.append(f"{self.path(step)}: {why}")
                _log.warning("ignoring snapshot %s", unusable[-1])
        return StorageContents(ranks, tuple(offers), tuple(self._fences.all()), tuple(unusable))

    def all_steps(self) -> list[int]:
        """Return the steps of all folders named like snapshots, newest first. Raise OSError."""
        try:
            names = [path.name for path in self.directory.iterdir()]
        except FileNotFoundError:
            return []
        for name in names:
            if name.startswith("step-") and manifest.step_of(name) is None:
                _log.warning("%s is ignored: not named like a snapshot", self.directory / name)
        return sorted((s for s in map(manifest.step_of, names) if s is not None), reverse=True)

    def complete(self) -> list[int]:
        """Return the steps of whole folders, newest first, without a read of tensors."""
        return [step for step in self.steps() if _whole(self.path(step), content=False)]

    def prune(self) -> list[int]:
        """Delete snapshots that retention does not keep; return their steps. Raise OSError."""
        newest = next(iter(self.complete()), None)
        if newest is None:
            return []
        before = self.all_steps()
        with dir_lock.writing_in(self.directory):
            self._retain(newest)
        return sorted({*before} - {*self.all_steps()})

    def path(self, step: int) -> Path:
        """Return the path of the folder for this step, which need not exist."""
        return self.directory / manifest.name_of(step)

    def name(self, step: int) -> str:
        """Return the folder's path for log lines and errors."""
        return str(self.path(step))

    def read(
        self, step: int, digest: str | None = None, sender: StateSender | None = None
    ) -> dict[str, Any]:
        """Return the verified state; a `sender` sends it during the read. Raise UnusableError."""
        del digest  # one snapshot per step
        return snapshot_dir.read(self.path(step), sender)

    def open(self, step: int, digest: str) -> OpenSnapshot:
        """Return the snapshot with this digest, for reads of parts. Raise UnusableError."""
        found = snapshot_dir.check(self.path(step), content=False)
        if manifest.candidate_of(found).digest != digest:
            raise UnusableError("it has just been replaced")
        return OpenSnapshot(found, partial(snapshot_dir.read_range, self.path(step)))

    def check(self, step: int, *, content: bool = True) -> dict[str, Any]:
        """Return the manifest. Raise UnusableError."""
        return snapshot_dir.check(self.path(step), content=content)

    def info(self, step: int) -> SnapshotInfo:
        """Return the size and the time of a snapshot. Raise OSError."""
        path = self.path(step)
        size = sum(each.stat().st_size for each in path.iterdir() if each.is_file())
        return SnapshotInfo(size, path.stat().st_mtime)

    def explain_error(self, error: OSError, size: int) -> tuple[str, str]:
        """Return the reason why a snapshot of `size` bytes could not be saved, and the remedy."""
        if error.errno in volume.FULL:
            return (
                f"it is full, and {size:,} bytes are needed",
                "Free space there, enlarge the volume, or keep fewer snapshots.",
            )
        return str(error), "Check the volume and its permissions."

    def is_transient(self, error: OSError) -> bool:
        """Return False: errors of a directory need a repair."""
        del error
        return False

    def _rename(self, aside: Path, target: Path) -> None:
        if target.exists() and not self._counts(target):
            spare = target.with_name(f"unusable-{target.name}-{secrets.token_hex(4)}")
            _log.warning("%s is unusable, and set aside as %s", target, spare.name)
            target.rename(spare)
        try:
            aside.rename(target)
        except OSError as error:
            overtaken = error.errno in (errno.ENOTEMPTY, errno.EEXIST)
            if not (overtaken and self._counts(target)):
                raise

    def _counts(self, path: Path) -> bool:
        return _whole(path, content=True) and not _is_fenced(path, self._fences.all())

    def _retain(self, newest: int, owner: Owner | None = None) -> None:
        """Delete snapshots beyond `keep` and fenced ones; none of a job other than `owner`'s."""
        fences = self._fences.all()
        fenced = [s for s in self.all_steps() if _is_fenced(self.path(s), fences)]
        complete = [s for s in self.complete() if not self._is_of_other_job(s, owner)]
        for step in [*steps_to_delete(complete, newest, self.keep), *fenced]:
            if not self._is_of_other_job(step, owner):
                dir_lock.discard(self.path(step))

    def _drop_for(self, fence: Fence) -> bool:
        """Delete the oldest snapshot for the writer behind this fence, if it is not fenced."""
        self._fences.check(fence)
        return self._drop_oldest(fence.owner)

    def _drop_oldest(self, owner: Owner) -> bool:
        """Delete the oldest whole snapshot of `owner`'s job; return False if there is only one."""
        complete = [step for step in self.complete() if not self._is_of_other_job(step, owner)]
        if len(complete) < 2:
            return False
        _log.warning("%s is full: the snapshot of step %d is deleted", self.where, complete[-1])
        dir_lock.discard(self.path(complete[-1]))
        return True

    def _is_of_other_job(self, step: int, owner: Owner | None) -> bool:
        try:
            writer = manifest.writer_of(snapshot_dir.check(self.path(step), content=False))
        except UnusableError:
            return False
        return owner is not None and writer.is_of_other_job(owner)


def _others(aside: Path, part: WriteAssignment) -> dict[str, FileDigest]:
    """Return the files of the other writers, once these are durable."""
    found = wait_for_parts(part, lambda number: snapshot_dir.read_part_record(aside, number))
    snapshot_dir.delete_part_records(aside)
    return found


def _is_fenced(path: Path, fences: list[Fence], chooser: Owner | None = None) -> bool:
    """Return whether a snapshot is whole, but fenced by another owner's resume."""
    try:
        found = snapshot_dir.check(path, content=False)
    except UnusableError:
        return False
    return is_fenced(manifest.origin_of(found), fences, chooser)


def _whole(path: Path, *, content: bool) -> bool:
    try:
        snapshot_dir.check(path, content=content)
    except UnusableError:
        return False
    return True
