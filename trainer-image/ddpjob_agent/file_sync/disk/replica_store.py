"""The replica store of an agent: complete replicas, at most two of its own.

    FOLDER/.files/MEMBERSHIP_SECONDS_WORKER/  0 1 2 … manifest.json
    FOLDER/.files/.new-WORKER-N/              being written

Workers that share a folder share one store: each uses the replicas of the others and copies no file
twice. A rename of its directory assigns a replica to another membership. Others may write to the
folder, too: a replica that is not admitted does not exist, and no link in the folder is followed.
May not: know the use of the script's files, or the state of training.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import itertools
import logging
import os
import time
from typing import TYPE_CHECKING

from ddpjob_agent.file_sync.decisions.admission import MalformedError, RefusedError
from ddpjob_agent.file_sync.decisions.refused_replicas import MAX_REFUSED
from ddpjob_agent.file_sync.decisions.replica import FileEntry, Replica, digest_of
from ddpjob_agent.file_sync.disk import places
from ddpjob_agent.file_sync.disk.file_copy import copy_file
from ddpjob_agent.file_sync.disk.manifest import Seen, read_manifest, write_manifest
from ddpjob_agent.file_sync.disk.places import Place
from ddpjob_protocol.messages.membership import MembershipId

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from ddpjob_agent.file_sync.disk.file_copy import Wanted
    from ddpjob_agent.file_sync.disk.local_files import TrackedFiles

FOLDER = ".files"  # hidden from other users of the folder
NEW = ".new-"
KEPT = 2  # own replicas; the older one stays until a new one is complete
LOCK_SECONDS = 30.0  # wait for another worker that writes to the folder

log = logging.getLogger("ddpjob.files")


@dataclasses.dataclass(frozen=True)
class StoredReplica:
    """A replica in the store."""

    copy: Replica
    parts: tuple[FileEntry, ...]
    seen: Seen  # of the files that were copied
    worker: str  # the worker that stored it
    place: Place

    def files(self) -> list[Place]:
        """Return the places of its files, in the order of `parts`."""
        return [self.place.below(str(i)) for i in range(len(self.parts))]


def open_replica_store(folders: Sequence[str], worker: str, entries: Sequence[str]) -> ReplicaStore:
    """Open a store in the first usable folder, for the files that `entries` name.

    Raises OSError if there is none.
    """
    *others, last = filter(None, folders)
    for folder in others:
        try:
            return ReplicaStore(folder, worker, entries)
        except OSError as error:
            log.warning("cannot keep replicas in %s: %s", folder, error.strerror)
    return ReplicaStore(last, worker, entries)


class ReplicaStore:
    """The view of one worker on a folder of replicas."""

    def __init__(self, folder: str, worker: str, entries: Sequence[str]) -> None:
        """Create the folder; delete unfinished replicas of this worker. Raises OSError."""
        self._folder = Place(folder, FOLDER)
        self._worker = worker
        self._entries = tuple(entries)
        self._numbers = itertools.count(1)
        self.refused: dict[str, str] = {}  # path of each replica that was not admitted, and reason
        os.makedirs(folder, exist_ok=True)
        places.check(self._folder, make=True)
        for name in self._unfinished():
            if _worker_of(name) == self._worker:
                places.remove_tree(self._folder.below(name))

    def _unfinished(self) -> list[str]:
        with contextlib.suppress(OSError):
            return [name for name in places.names_in(self._folder) if name.startswith(NEW)]
        return []

    def replicas(self) -> list[StoredReplica]:
        """Return all readable replicas, the oldest first."""
        try:
            names = places.names_in(self._folder)
        except OSError:
            return []
        found = (self._read(name) for name in names if not name.startswith("."))
        return sorted((kept for kept in found if kept), key=lambda kept: kept.copy.order)

    def find(self, digest: str) -> StoredReplica | None:
        """Return a replica with this digest; None if there is none."""
        return next((kept for kept in self.replicas() if kept.copy.digest == digest), None)

    def _read(self, name: str) -> StoredReplica | None:
        place = self._folder.below(name)
        try:
            membership, seconds, worker = name.split("_", 2)
            copy = Replica(membership, float(seconds), "", 0)
        except ValueError:
            return None
        try:
            parts, seen = read_manifest(place, self._entries)
            found = StoredReplica(copy, parts, seen, worker, place)
            names = [each.base for each in found.files()]
            if places.sizes(place, names) != [part.size for part in parts]:
                return None
        except OSError:  # it is being renamed or deleted
            return None
        except (MalformedError, RefusedError) as error:
            if len(self.refused) < MAX_REFUSED:
                self.refused.setdefault(place.path, str(error))
            return None
        size = sum(part.size for part in parts)
        copy = dataclasses.replace(copy, digest=digest_of(parts), size=size)
        return dataclasses.replace(found, copy=copy)

    # --- storing ----------------------------------------------------------------------------------

    def store(
        self,
        files: TrackedFiles,
        seen: Seen,
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
        place = self._place(*at)
        places.move(kept.place, place)
        return self._read(place.base) or kept

    def stage(self, count: int) -> list[Place]:
        """Return places for the files of a new replica; delete old ones for room. Raises OSError."""
        mine = [kept for kept in self.replicas() if kept.worker == self._worker]
        for kept in mine[: 1 - KEPT]:
            self.delete(kept)
        folder = self._folder.below(f"{NEW}{self._worker}-{next(self._numbers)}")
        places.make_folder(folder)
        return [folder.below(str(i)) for i in range(count)]

    def commit(
        self,
        parts: tuple[FileEntry, ...],
        targets: Sequence[Place],
        at: tuple[str, float],
        seen: Seen = (),
    ) -> StoredReplica:
        """Complete a replica whose files were written to `targets`. Raises OSError."""
        folder, place = targets[0].folder, self._place(*at)
        for each in targets:
            places.complete(each)
        write_manifest(folder, parts, seen)
        places.sync_folder(folder)
        places.remove_tree(place)
        places.move(folder, place)
        places.sync_folder(self._folder)
        kept = self._read(place.base)
        if kept is None:
            raise OSError(0, "it cannot be read back", place.path)
        return kept

    def discard(self, targets: Sequence[Place]) -> None:
        """Delete the staged files of a replica that was not completed."""
        places.remove_tree(targets[0].folder)

    def _place(self, membership: str, seconds: float) -> Place:
        return self._folder.below(f"{membership}_{seconds:.3f}_{self._worker}")

    @contextlib.contextmanager
    def _locked(self, wanted: Wanted) -> Iterator[None]:
        """Lock a shared folder for one worker; proceed without the lock if locking fails."""
        with places.opened(self._folder) as folder:
            how = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
            handle = os.open(".lock", how, 0o666, dir_fd=folder)
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
                    places.remove_tree(self._folder.below(name))

    def delete(self, kept: StoredReplica) -> None:
        """Delete a replica."""
        places.remove_tree(kept.place)

    @staticmethod
    def check(kept: StoredReplica, wanted: Wanted) -> bool:
        """Return whether the files of a replica still match their digests."""
        try:
            for place, part in zip(kept.files(), kept.parts):
                if copy_file(places.open_to_read(place), None, part.size, wanted) != part.digest:
                    return False
        except OSError:
            return False
        return True


def _worker_of(name: str) -> str:
    """Return the worker that writes an unfinished replica of this name."""
    return name[len(NEW) :].rpartition("-")[0]
