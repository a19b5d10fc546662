"""What one worker has of the script's files: in the script's place, and on its shelf.

All of it blocks on the disk: called in a thread, one call at a time; only `find` at any time.
May not: talk to anybody, or decide which copy counts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from typing import TYPE_CHECKING, Callable

from ddpjob_agent.file_sync.local_files import ChangedError, copy_file
from ddpjob_agent.file_sync.replica import BEFORE_ALL, NOTHING, FileEntry, Replica, digest_of

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from ddpjob_agent.file_sync.local_files import FileFingerprint, TrackedFiles
    from ddpjob_agent.file_sync.replica_store import ReplicaStore

log = logging.getLogger("ddpjob.files")

At = tuple[str, float]  # a membership, and seconds since it began


@dataclasses.dataclass(frozen=True)
class InstalledReplica:
    """What lies where the script has its files, and is whole."""

    copy: Replica
    parts: tuple[FileEntry, ...]
    seen: tuple[FileFingerprint, ...]


class LocalReplicas:
    """The files of one worker, and its copies of them."""

    def __init__(self, files: TrackedFiles, shelf: ReplicaStore) -> None:
        self._files = files
        self._shelf = shelf
        self._ends = False
        self.place: InstalledReplica | None = None
        self.here: str | None = None  # digest of what is in place; None: not whole
        self.problem = ""  # why no copy could be kept

    def cancel(self) -> None:
        """Give up whatever is being done."""
        self._ends = True

    def _is_wanted(self) -> bool:
        return not self._ends

    def fingerprint(self) -> tuple[FileFingerprint, ...]:
        """The files, as they are now."""
        return self._files.fingerprint()

    def find_corruption(self, seen: Sequence[FileFingerprint]) -> str:
        """What is not whole."""
        return self._files.find_corruption(seen)

    def replicas(self, *, stable: bool) -> tuple[Replica, ...]:
        """What others can get from here; `stable`: what is in place will not change meanwhile."""
        found = {
            kept.copy.digest: kept.copy for kept in self._shelf.replicas()
        }  # the newest of each
        if stable and self.place is not None:
            found.setdefault(self.place.copy.digest, self.place.copy)
        return tuple(found.values())

    def find(self, digest: str) -> tuple[tuple[FileEntry, ...], list[str]] | None:
        """The parts of this copy, and where they lie."""
        kept, place = self._shelf.find(digest), self.place
        if kept is not None:
            return kept.parts, kept.paths()
        if place is not None and place.copy.digest == digest:
            return place.parts, [self._files.path(part.name) for part in place.parts]
        return None

    def discard(self, digest: str) -> None:
        """This copy is not what it was."""
        kept = self._shelf.find(digest)
        if kept is not None:
            log.warning("the copy of membership %s is damaged", kept.copy.membership)
            self._shelf.delete(kept)
        elif self.place is not None and self.place.copy.digest == digest:
            self.place = self.here = None

    # --- what the script wrote ----------------------------------------------------------------------

    def scan_after_exit(self, at: Callable[[tuple[FileFingerprint, ...]], At | None]) -> None:
        """No process of the script runs: what did they leave? `at`: when it was written, if known."""
        self._scan_after_exit(at)
        if not self._files.is_tidy():
            self.here = None  # put in place anew, once nobody's processes run

    def _scan_after_exit(self, at: Callable[[tuple[FileFingerprint, ...]], At | None]) -> None:
        seen = self._files.fingerprint()
        if self.place is not None and self.place.seen == seen:
            self.here = self.place.copy.digest
            return
        self.place, self.here = None, None if seen else NOTHING
        damage = self._files.find_corruption(seen)
        if damage:
            log.warning("%s", damage)
        elif seen:
            try:
                self.store(seen, at(seen) or self._written_at(seen))
            except (ChangedError, OSError) as error:
                log.warning("what is in place cannot be read: %r", error)

    def store(self, seen: tuple[FileFingerprint, ...], at: At) -> None:
        """Copy what is in place, all of it whole; raises ChangedError, OSError if it is not."""
        try:
            kept = self._shelf.store(self._files, seen, at, self._is_wanted)
            copy, parts = kept.copy, kept.parts
            self.problem = ""
        except OSError as error:
            parts = self._files.read(seen, [None] * len(seen), self._is_wanted)
            copy = Replica(*at, digest_of(parts), sum(part.size for part in parts))
            self.set_problem(error)
        self.place, self.here = InstalledReplica(copy, parts, seen), copy.digest

    def set_problem(self, error: OSError) -> None:
        """A copy cannot be kept; the job goes on."""
        self.problem = f"cannot keep a copy of the script's files: {error.strerror or error}"
        log.warning("%s", self.problem)

    def _written_at(self, seen: Sequence[FileFingerprint]) -> At:
        """Files that lay here before this agent did anything: older than all copies, or newer.

        By the time of the disk that both lie on, when an earlier run or agent left both.
        """
        copies = self._shelf.replicas()
        if copies:
            last = copies[-1]
            times = {each.name: each.modified for each in last.seen}
            later = max((s.modified - times[s.name] for s in seen if s.name in times), default=0)
            if later > 0:
                return last.copy.membership, last.copy.seconds + later / 1e9
        return BEFORE_ALL, 0.0

    # --- what it is to find ---------------------------------------------------------------------------

    def clear(self) -> None:
        """The script is to find nothing; what is there is no whole copy. Raises OSError."""
        for each in self._files.fingerprint():
            log.warning("%s is put aside: it is not whole, and there is no copy of it", each.name)
            self._files.quarantine([each.name])
        self._files.remove_leftover_dirs()
        self.place, self.here = None, NOTHING

    def install(self, copy: Replica) -> bool:
        """Put a copy in place, if it is on the shelf; nothing is written if it is there already.

        Raises OSError if it cannot be written.
        """
        kept = self._shelf.find(copy.digest)
        if kept is None or self.is_installed(copy, kept.parts):
            return kept is not None
        targets = self._files.stage(kept.parts)
        try:
            for source, target, part in zip(kept.paths(), targets, kept.parts):
                if copy_file(source, target, self._is_wanted) != part.digest:
                    raise OSError(0, "the copy is damaged")
            self._set_installed(copy, kept.parts, self._files.commit(kept.parts, targets))
        except OSError:
            if self._shelf.check(kept, self._is_wanted):
                raise
            self.discard(copy.digest)
            return False
        finally:
            self._files.discard(targets)
        return True

    def is_installed(self, copy: Replica, parts: tuple[FileEntry, ...]) -> bool:
        """Whether it is in place already, as on a volume that another worker has put it on."""
        seen = self._files.holds(parts, self._is_wanted)
        if seen is None:
            return False
        self._set_installed(copy, parts, seen)
        if self._shelf.find(copy.digest) is None:
            with contextlib.suppress(ChangedError):
                self.store(seen, (copy.membership, copy.seconds))
        return True

    def _set_installed(
        self, copy: Replica, parts: tuple[FileEntry, ...], seen: tuple[FileFingerprint, ...]
    ) -> None:
        self._files.remove_leftover_dirs()
        self.place, self.here = InstalledReplica(copy, parts, seen), copy.digest

    # --- what others give -----------------------------------------------------------------------------

    def stage(self, parts: Sequence[FileEntry], *, bypass_store: bool) -> tuple[str, list[str]]:
        """Where a copy goes that comes: a folder and its files; `straight`: beside the place."""
        if bypass_store:
            return "", self._files.stage(parts)
        folder = self._shelf.stage()
        return folder, [f"{folder}/{i}" for i in range(len(parts))]

    def receive(
        self, copy: Replica, parts: tuple[FileEntry, ...], folder: str, targets: Sequence[str]
    ) -> None:
        """It has come, whole; raises OSError."""
        if folder:
            self._shelf.commit(folder, parts, (copy.membership, copy.seconds))
        else:
            self._set_installed(copy, parts, self._files.commit(parts, targets))

    def abort_receive(self, folder: str, targets: Sequence[str]) -> None:
        """It has not come."""
        self._files.discard(targets)
        with contextlib.suppress(OSError):
            self._shelf.remove(folder)

    def on_membership(self, membership: str, members: Collection[str]) -> None:
        """A membership begins from what is in place."""
        if self.place is not None:
            copy = dataclasses.replace(self.place.copy, membership=membership, seconds=0.0)
            self._shelf.on_membership(copy.digest, membership, members)
            self.place = dataclasses.replace(self.place, copy=copy)
