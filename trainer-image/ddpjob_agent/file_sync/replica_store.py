"""The replica store of an agent: complete replicas, at most two of its own.

    FOLDER/.files/MEMBERSHIP_SECONDS_WORKER/  0 1 2 … manifest.json
    FOLDER/.files/.new-WORKER-N/              being written

Workers that share a folder share one store: each uses the replicas of the others and copies no file
twice. A rename of its directory assigns a replica to another membership.
May not: know the use of the script's files, or the state of training.
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

FOLDER = ".files"  # hidden from other users of the folder
MANIFEST = "manifest.json"
NEW = ".new-"
KEPT = 2  # own replicas; the older one stays until a new one is complete
LOCK_SECONDS = 30.0  # wait for another worker that writes to the folder

log = logging.getLogger("ddpjob.files")


@dataclasses.dataclass(frozen=True)
class StoredReplica:
    """A replica in the store."""

    copy: Replica
    parts: tuple[FileEntry, ...]
    seen: tuple[FileFingerprint, ...]  # of the files that were copied
    worker: str  # the worker that stored it
    path: str

    def paths(self) -> list[str]:
        """Return the paths of its files, in the order of `parts`."""
        return [os.path.join(self.path, str(i)) for i in range(len(self.parts))]


def open_replica_store(folders: Sequence[str], worker: str) -> ReplicaStore:
    """Open a store in the first usable folder. Raises OSError if there is none."""
    *others, last = filter(None, folders)
    for folder in others:
        try:
            return ReplicaStore(folder, worker)
        except OSError as error:
            log.warning("cannot keep replicas in %s: %s", folder, error.strerror)
    return ReplicaStore(last, worker)


class ReplicaStore:
    """The view of one worker on a folder of replicas."""

    def __init__(self, folder: str, worker: str) -> None:
        """Create the folder; delete unfinished replicas of this worker. Raises OSError."""
        self._folder = os.path.join(folder, FOLDER)
        self._worker = worker
        self._numbers = itertools.count(1)
        os.makedirs(self._folder, exist_ok=True)
        for name in self._unfinished():
            if _worker_of(name) == self._worker:
                self._remove(os.path.join(self._folder, name))

    def _unfinished(self) -> list[str]:
        with contextlib.suppress(OSError):
            return [name for name in os.listdir(self._folder) if name.startswith(NEW)]
        return []

    def replicas(self) -> list[StoredReplica]:
        """Return all readable replicas, the oldest first."""
        try:
            names = os.listdir(self._folder)
        except OSError:
            return []
        found = (self._read(name) for name in names if not name.startswith("."))
        return sorted((kept for kept in found if kept), key=lambda kept: kept.copy.order)

    def find(self, digest: str) -> StoredReplica | None:
        """Return a replica with this digest; None if there is none."""
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

    # --- storing ----------------------------------------------------------------------------------

    def store(
        self,
        files: TrackedFiles,
        seen: tuple[FileFingerprint, ...],
        at: tuple[str, float],
        wanted: Wanted,
    ) -> StoredReplica:
        """Store a replica of these files with this time. Raises OSError and ChangedError."""
        with self._locked(wanted):
            for kept in self.replicas():
                if kept.seen == seen:
                    return self._claim(kept, at)
            targets = self.stage(len(seen))
            try:
                return self.commit(files.read(seen, targets, wanted), targets, at, seen)
            finally:
                self.discard(targets)

    def _claim(self, kept: StoredReplica, at: tuple[str, float]) -> StoredReplica:
        """Give a stored replica a later time: the worker that stored it may know less about it."""
        if kept.copy.order[:2] >= (MembershipId.parse(at[0]), at[1]):
            return kept
        path = self._path(*at)
        os.rename(kept.path, path)
        return self._read(os.path.basename(path)) or kept

    def stage(self, count: int) -> list[str]:
        """Return paths for the files of a new replica; delete old ones for room. Raises OSError."""
        mine = [kept for kept in self.replicas() if kept.worker == self._worker]
        for kept in mine[: 1 - KEPT]:
            self.delete(kept)
        folder = os.path.join(self._folder, f"{NEW}{self._worker}-{next(self._numbers)}")
        os.mkdir(folder)
        return [os.path.join(folder, str(i)) for i in range(count)]

    def commit(
        self,
        parts: tuple[FileEntry, ...],
        targets: Sequence[str],
        at: tuple[str, float],
        seen: tuple[FileFingerprint, ...] = (),
    ) -> StoredReplica:
        """Complete a replica whose files were written to `targets`. Raises OSError."""
        folder, path = os.path.dirname(targets[0]), self._path(*at)
        manifest = os.path.join(folder, MANIFEST)
        with open(manifest, "w", encoding="utf-8") as file:
            json.dump({"parts": parts, "seen": seen}, file)
        for each in (*targets, manifest, folder):
            sync(each)
        self._remove(path)
        os.rename(folder, path)
        sync(self._folder)
        kept = self._read(os.path.basename(path))
        if kept is None:
            raise OSError(0, "it cannot be read back", path)
        return kept

    def discard(self, targets: Sequence[str]) -> None:
        """Delete the staged files of a replica that was not completed."""
        self._remove(os.path.dirname(targets[0]))

    def _path(self, membership: str, seconds: float) -> str:
        return os.path.join(self._folder, f"{membership}_{seconds:.3f}_{self._worker}")

    @contextlib.contextmanager
    def _locked(self, wanted: Wanted) -> Iterator[None]:
        """Lock a shared folder for one worker; proceed without the lock if locking fails."""
        handle = os.open(os.path.join(self._folder, ".lock"), os.O_RDWR | os.O_CREAT, 0o666)
        until = time.monotonic() + LOCK_SECONDS
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

    # --- renaming and deleting --------------------------------------------------------------------

    def on_membership(
        self, digest: str, membership: str, members: Collection[str], wanted: Wanted
    ) -> None:
        """Assign the replica with this digest to a membership that starts from it.

        Deletes the older and the unfinished replicas of workers outside the membership.
        """
        found = [kept for kept in self.replicas() if kept.copy.digest == digest]
        for kept in found[-1:]:
            with contextlib.suppress(OSError):  # another worker renamed it first
                self._claim(kept, (membership, 0.0))
        present = self.replicas()
        if any(kept.copy.membership == membership for kept in present):
            for kept in present:
                if kept.worker not in members and kept.copy.membership != membership:
                    self.delete(kept)
        unfinished = [name for name in self._unfinished() if _worker_of(name) not in members]
        if unfinished:
            # A worker that is about to join may be writing one.
            with contextlib.suppress(OSError), self._locked(wanted):
                for name in unfinished:
                    self._remove(os.path.join(self._folder, name))

    def delete(self, kept: StoredReplica) -> None:
        """Delete a replica."""
        self._remove(kept.path)

    @staticmethod
    def _remove(folder: str) -> None:
        shutil.rmtree(folder, ignore_errors=True)

    @staticmethod
    def check(kept: StoredReplica, wanted: Wanted) -> bool:
        """Return whether the files of a replica still match their digests."""
        try:
            digests = [copy_file(path, None, wanted) for path in kept.paths()]
        except OSError:
            return False
        return digests == [part.digest for part in kept.parts]


def _worker_of(name: str) -> str:
    """Return the worker that writes an unfinished replica of this name."""
    return name[len(NEW) :].rpartition("-")[0]
