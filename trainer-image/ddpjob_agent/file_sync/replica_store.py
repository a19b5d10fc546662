"""Where an agent keeps copies of the script's files: whole or absent, two of its own at the most.

    FOLDER/.files/MEMBERSHIP_SECONDS_WORKER/  0 1 2 … manifest.json
    FOLDER/.files/.new-WORKER-N/              is being written

A folder that several workers share is one shelf: each sees the copies of the others, and makes
none of what another has copied. Renaming a directory is how a copy becomes another membership's.
May not: know what the script does with its files, or who trains.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import itertools
import json
import logging
import os
import shutil
import time
from typing import TYPE_CHECKING

from ddpjob_agent.file_sync.local_files import FileFingerprint, copy_file, sync
from ddpjob_agent.file_sync.replica import FileEntry, Replica, digest_of
from ddpjob_protocol.membership import MembershipId

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from ddpjob_agent.file_sync.local_files import TrackedFiles, Wanted

FOLDER = ".files"  # hidden: whatever else lies beside it lists what is its own
MANIFEST = "manifest.json"
NEW = ".new-"
KEPT = 2  # the newest, and the one before it while that is made
PATIENCE_SECONDS = 30.0  # for another worker that writes to the same folder

log = logging.getLogger("ddpjob.files")


@dataclasses.dataclass(frozen=True)
class StoredReplica:
    """A copy on the shelf."""

    copy: Replica
    parts: tuple[FileEntry, ...]
    seen: tuple[FileFingerprint, ...]  # the files that it was made of
    worker: str  # who made it
    path: str

    def paths(self) -> list[str]:
        """Of its files, in the order of `parts`."""
        return [os.path.join(self.path, str(i)) for i in range(len(self.parts))]


def open_replica_store(folders: Sequence[str], worker: str) -> ReplicaStore:
    """A shelf in the first of these folders where one can be; raises OSError."""
    for folder in filter(None, folders[:-1]):
        try:
            shelf = ReplicaStore(folder, worker)
            shelf.open()
        except OSError as error:
            log.warning("no copies can be kept in %s: %s", folder, error.strerror)
        else:
            return shelf
    shelf = ReplicaStore(folders[-1], worker)
    shelf.open()
    return shelf


class ReplicaStore:
    """One worker's view of a folder."""

    def __init__(self, folder: str, worker: str) -> None:
        self._folder = os.path.join(folder, FOLDER)
        self._worker = worker
        self._numbers = itertools.count(1)

    def open(self) -> None:
        """Make the folder, and clear it of what an agent of this name left half done; raises OSError."""
        os.makedirs(self._folder, exist_ok=True)
        for name in os.listdir(self._folder):
            if name.startswith(f"{NEW}{self._worker}-"):
                shutil.rmtree(os.path.join(self._folder, name), ignore_errors=True)

    def replicas(self) -> list[StoredReplica]:
        """All that are there, the oldest first; what cannot be read is none."""
        try:
            names = os.listdir(self._folder)
        except OSError:
            return []
        found = (self._read(name) for name in names if not name.startswith("."))
        return sorted((kept for kept in found if kept), key=lambda kept: kept.copy.order)

    def find(self, digest: str) -> StoredReplica | None:
        """One with this content."""
        return next((kept for kept in self.replicas() if kept.copy.digest == digest), None)

    def _read(self, name: str) -> StoredReplica | None:
        path = os.path.join(self._folder, name)
        try:
            membership, seconds, worker = name.split("_", 2)
            MembershipId.parse(membership)
            with open(os.path.join(path, MANIFEST), encoding="utf-8") as file:
                manifest = json.load(file)
            parts = tuple(FileEntry(*each) for each in manifest["parts"])
            seen = tuple(FileFingerprint(*each) for each in manifest["seen"])
            for i, part in enumerate(parts):
                if os.path.getsize(os.path.join(path, str(i))) != part.size:
                    return None
        except (OSError, KeyError, TypeError, ValueError):
            return None
        size = sum(part.size for part in parts)
        copy = Replica(membership, float(seconds), digest_of(parts), size)
        return StoredReplica(copy, parts, seen, worker, path)

    # --- new ones ---------------------------------------------------------------------------------

    def store(
        self,
        files: TrackedFiles,
        seen: tuple[FileFingerprint, ...],
        at: tuple[str, float],
        wanted: Wanted,
    ) -> StoredReplica:
        """Copy these files; `at`: the membership and its seconds. Raises OSError, ChangedError."""
        with self._locked(wanted):
            for kept in self.replicas():
                if kept.seen == seen:
                    return self._claim(kept, at)
            folder = self.stage()
            try:
                targets = [os.path.join(folder, str(i)) for i in range(len(seen))]
                parts = files.read(seen, list(targets), wanted)
                return self.commit(folder, parts, at, seen)
            finally:
                shutil.rmtree(folder, ignore_errors=True)

    def _claim(self, kept: StoredReplica, at: tuple[str, float]) -> StoredReplica:
        """Another worker, that knows less of when it was written, may have been faster."""
        if kept.copy.order[:2] >= (MembershipId.parse(at[0]), at[1]):
            return kept
        path = self._path(*at)
        os.rename(kept.path, path)
        return self._read(os.path.basename(path)) or kept

    def stage(self) -> str:
        """A new folder for a copy, with room made for it; raises OSError."""
        self._retain(KEPT - 1)
        folder = os.path.join(self._folder, f"{NEW}{self._worker}-{next(self._numbers)}")
        os.mkdir(folder)
        return folder

    def commit(
        self,
        folder: str,
        parts: tuple[FileEntry, ...],
        at: tuple[str, float],
        seen: tuple[FileFingerprint, ...] = (),
    ) -> StoredReplica:
        """Give a copy that was written to `folder` its name; raises OSError."""
        for i in range(len(parts)):
            sync(os.path.join(folder, str(i)))
        with open(os.path.join(folder, MANIFEST), "w", encoding="utf-8") as file:
            json.dump({"parts": parts, "seen": seen}, file)
            file.flush()
            os.fsync(file.fileno())
        sync(folder)
        path = self._path(*at)
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)
        os.rename(folder, path)
        sync(self._folder)
        kept = self._read(os.path.basename(path))
        if kept is None:
            raise OSError(0, "it cannot be read back", path)
        return kept

    def _path(self, membership: str, seconds: float) -> str:
        return os.path.join(self._folder, f"{membership}_{seconds:.3f}_{self._worker}")

    @contextlib.contextmanager
    def _locked(self, wanted: Wanted) -> Iterator[None]:
        """One worker at a time makes a copy in a folder that several share; who cannot tell, does."""
        handle = os.open(os.path.join(self._folder, ".lock"), os.O_RDWR | os.O_CREAT, 0o666)
        until = time.monotonic() + PATIENCE_SECONDS
        try:
            while time.monotonic() < until and wanted():
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    time.sleep(0.05)
                except OSError:
                    break
            yield
        finally:
            os.close(handle)

    # --- what becomes of them ---------------------------------------------------------------------

    def on_membership(self, digest: str, membership: str, members: Collection[str]) -> None:
        """A membership begins from this content: it is that membership's, and all else is older.

        What workers left behind who are not in it is removed.
        """
        copies = [kept for kept in self.replicas() if kept.copy.digest == digest]
        mine = [kept for kept in copies if kept.worker == self._worker]
        others = [kept for kept in copies if kept.worker not in members]
        here = [kept for kept in copies if kept.worker in members]
        for kept in mine[-1:] or ([] if here else others[-1:]):
            with contextlib.suppress(OSError):  # another one was faster
                target = self._path(membership, 0.0)
                if kept.path != target:
                    os.rename(kept.path, target)
        present = {kept.worker for kept in self.replicas() if kept.copy.membership == membership}
        for kept in self.replicas() if present else ():
            if kept.worker not in members and kept.copy.membership != membership:
                self.delete(kept)

    def delete(self, kept: StoredReplica) -> None:
        """Remove a copy."""
        self.remove(kept.path)

    @staticmethod
    def remove(folder: str) -> None:
        """Remove a folder with a copy, whole or not; none is no error."""
        shutil.rmtree(folder, ignore_errors=True)

    def _retain(self, keep: int) -> None:
        mine = [kept for kept in self.replicas() if kept.worker == self._worker]
        for kept in mine[: max(0, len(mine) - keep)]:
            self.delete(kept)

    @staticmethod
    def check(kept: StoredReplica, wanted: Wanted) -> bool:
        """Whether it still is what it was."""
        try:
            digests = [copy_file(path, None, wanted) for path in kept.paths()]
        except OSError:
            return False
        return digests == [part.digest for part in kept.parts]
