"""The replicas of one worker: the installed replica, and those in its replica store.

All methods block on the disk. They run in a thread, one call at a time; only `find` may run at any
time. May not: communicate, or choose the replica to install.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import os
from typing import TYPE_CHECKING, Callable, Optional

from ddpjob_agent.file_sync.decisions.admission import admit
from ddpjob_agent.file_sync.decisions.refused_replicas import RefusedReplicas
from ddpjob_agent.file_sync.decisions.replica import BEFORE_ALL, NOTHING, Replica, digest_of
from ddpjob_agent.file_sync.disk.file_copy import copy_file
from ddpjob_agent.file_sync.disk.local_files import ChangedError, TrackedFiles
from ddpjob_agent.file_sync.disk.places import open_to_read
from ddpjob_agent.file_sync.disk.replica_store import ReplicaStore, open_replica_store

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from ddpjob_agent.file_sync.decisions.admission import RefusedError
    from ddpjob_agent.file_sync.decisions.replica import Parts
    from ddpjob_agent.file_sync.disk.local_files import FileFingerprint
    from ddpjob_agent.file_sync.disk.places import Place
    from ddpjob_agent.file_sync.transfer import Source

log = logging.getLogger("ddpjob.files")

At = tuple[str, float]  # a membership, and seconds since its start
WrittenAt = Callable[["tuple[FileFingerprint, ...]"], Optional[At]]


@dataclasses.dataclass(frozen=True)
class InstalledReplica:
    """A complete replica at the paths of the script's files."""

    copy: Replica
    parts: Parts
    seen: tuple[FileFingerprint, ...]


def open_replicas(patterns: Sequence[str], folders: Sequence[str], worker: str) -> LocalReplicas:
    """Open the files of `patterns` here, and the replica store in the first usable folder."""
    store = open_replica_store(folders, worker, patterns)
    return LocalReplicas(TrackedFiles(patterns, os.getcwd(), worker), store)


class LocalReplicas:
    """The tracked files of one worker, and its replicas."""

    def __init__(self, files: TrackedFiles, store: ReplicaStore) -> None:
        self.files = files
        self._store = store
        self._is_cancelled = False
        self.installed: InstalledReplica | None = None
        self.installed_digest: str | None = None  # digest of the installed files; None: incomplete
        self.problem = ""  # error of the last failed store
        self.refused = RefusedReplicas()

    def cancel(self) -> None:
        """Cancel all running and future reads."""
        self._is_cancelled = True

    def _is_wanted(self) -> bool:
        return not self._is_cancelled

    def replicas(self, *, stable: bool) -> tuple[Replica, ...]:
        """Return the replicas to serve; `stable`: also the installed one, as no process runs."""
        found = {kept.copy.digest: kept.copy for kept in self._store.replicas()}  # newest of each
        self.refused.add_stored(self._store.refused)
        if stable and self.installed is not None:
            found.setdefault(self.installed.copy.digest, self.installed.copy)
        return tuple(found.values())

    def find(self, digest: str) -> Source | None:
        """Return the files of this replica, and what opens each; None if it is absent."""
        kept, installed = self._store.find(digest), self.installed
        if kept is not None:
            return kept.parts, [functools.partial(open_to_read, each) for each in kept.files()]
        if installed is not None and installed.copy.digest == digest:
            names = [part.name for part in installed.parts]
            return installed.parts, [functools.partial(self.files.open, name) for name in names]
        return None

    def verify(self, digest: str) -> bool:
        """Return whether this replica is present and intact; delete a corrupt one."""
        kept, installed = self._store.find(digest), self.installed
        if kept is not None:
            if self._store.check(kept, self._is_wanted):
                return True
            log.warning("the copy of membership %s is damaged", kept.copy.membership)
            self._store.delete(kept)
        elif installed is not None and installed.copy.digest == digest:
            if self.files.holds(installed.parts, self._is_wanted) is not None:
                return True
            self.installed = self.installed_digest = None
        return False

    # --- files that the script wrote --------------------------------------------------------------

    def scan_after_exit(self, written_at: WrittenAt, members: Collection[str] = ()) -> None:
        """Find and store the files after all processes ended.

        `written_at` returns their time, if it is known; `members` may install replicas now.
        """
        self.files.remove_staged(members)
        if self.files.is_partial():
            log.warning("the installed files are of two states: an installation was interrupted")
            self.installed = self.installed_digest = None
            return
        self._scan(written_at)
        if not self.files.is_tidy():
            self.installed_digest = None  # installed again, once no worker's processes run

    def _scan(self, written_at: WrittenAt) -> None:
        seen = self.files.fingerprint()
        if self.installed is not None and self.installed.seen == seen:
            self.installed_digest = self.installed.copy.digest
            return
        self.installed, self.installed_digest = None, None if seen else NOTHING
        damage = self.files.find_corruption(seen)
        if damage:
            log.warning("%s", damage)
        elif seen:
            try:
                self.store(seen, written_at(seen) or self._written_before(seen))
            except (ChangedError, OSError) as error:
                log.warning("the installed files cannot be read: %r", error)

    def store(self, seen: tuple[FileFingerprint, ...], at: At) -> None:
        """Store the installed files as a replica. Raises ChangedError and OSError."""
        try:
            kept = self._store.store(self.files, seen, at, self._is_wanted)
            copy, parts, self.problem = kept.copy, kept.parts, ""
        except OSError as error:
            parts = self.files.read(seen, [None] * len(seen), self._is_wanted)
            copy = Replica(*at, digest_of(parts), sum(part.size for part in parts))
            self.set_problem(error)
        self.installed, self.installed_digest = InstalledReplica(copy, parts, seen), copy.digest

    def set_problem(self, error: OSError) -> None:
        """Record and log that no replica can be stored; the job continues."""
        self.problem = f"cannot keep a copy of the script's files: {error.strerror or error}"
        log.warning("%s", self.problem)

    def _written_before(self, seen: Sequence[FileFingerprint]) -> At:
        """Estimate the time of files that were written before this agent started.

        If an earlier run or agent left files and replicas, their disk's clock orders both. Without
        a newer file, the files are older than all replicas.
        """
        copies = self._store.replicas()
        if copies:
            last = copies[-1]
            times = {each.name: each.modified for each in last.seen}
            later = max((s.modified - times[s.name] for s in seen if s.name in times), default=0)
            if later > 0:
                return last.copy.membership, last.copy.seconds + later / 1e9
        return BEFORE_ALL, 0.0

    # --- installing -------------------------------------------------------------------------------

    def clear(self) -> None:
        """Quarantine all files, so that the script finds none. Raises OSError."""
        for each in self.files.fingerprint():
            log.warning("%s is incomplete and has no replica; renaming it", each.name)
            self.files.quarantine([each.name])
        self.files.tidy()
        self.installed, self.installed_digest = None, NOTHING

    def install(self, copy: Replica) -> bool:
        """Install a replica from the store; return False if the store does not have it intact.

        Writes nothing if the replica is installed already. Raises OSError if a write fails.
        """
        kept = self._store.find(copy.digest)
        if kept is None or self._is_installed(copy, kept.parts):
            return kept is not None
        targets = self.files.stage(kept.parts)
        try:
            for source, target, part in zip(kept.files(), targets, kept.parts):
                file = open_to_read(source)
                if copy_file(file, target, part.size, self._is_wanted) != part.digest:
                    raise OSError(0, "the copy is damaged")
            self._commit(copy, kept.parts, targets)
        except OSError:
            if self.verify(copy.digest):
                raise
            return False
        finally:
            self.files.discard(targets)
        return True

    def _commit(self, copy: Replica, parts: Parts, targets: Sequence[Place]) -> None:
        self._set_installed(copy, parts, self.files.commit(parts, targets))

    def _is_installed(self, copy: Replica, parts: Parts) -> bool:
        """Return whether the replica is installed, perhaps by another worker on a shared volume."""
        installed, seen = self.installed, self.files.fingerprint()
        if installed is None or installed.seen != seen:
            found = self.files.holds(parts, self._is_wanted)
            if found is None:
                return False
            seen = found
        elif installed.copy.digest != copy.digest:
            return False
        self._set_installed(copy, parts, seen)
        return True

    def _set_installed(
        self, copy: Replica, parts: Parts, seen: tuple[FileFingerprint, ...]
    ) -> None:
        self.files.tidy()
        self.installed, self.installed_digest = InstalledReplica(copy, parts, seen), copy.digest
        if self._store.find(copy.digest) is None:
            with contextlib.suppress(ChangedError, OSError):
                self.store(seen, (copy.membership, copy.seconds))

    # --- receiving from other workers -------------------------------------------------------------

    def stage(self, copy: Replica, parts: Parts, *, to_store: bool) -> list[Place]:
        """Return a place for each file of a replica that arrives; none if it is installed already.

        It arrives at the script's files, or `to_store` for other workers. Raises OSError, and
        RefusedError if it is not admitted.
        """
        admit(parts, self.files.entries)
        if to_store:
            return self._store.stage(len(parts))
        return [] if self._is_installed(copy, parts) else self.files.stage(parts)

    def receive(
        self, copy: Replica, parts: Parts, targets: Sequence[Place], *, to_store: bool
    ) -> None:
        """Store or install a replica that arrived. Raises OSError."""
        if to_store:
            self._store.commit(parts, targets, (copy.membership, copy.seconds))
        elif targets:
            self._commit(copy, parts, targets)

    def refuse(self, copy: Replica, holder: str, reason: RefusedError) -> None:
        """Record that a replica that a worker sent is not admitted."""
        self.refused.add_sent(copy, holder, reason)

    def discard(self, targets: Sequence[Place], *, to_store: bool) -> None:
        """Delete the staged files of a replica that did not arrive."""
        if targets:
            (self._store if to_store else self.files).discard(targets)

    def on_membership(self, membership: str, members: Collection[str]) -> None:
        """Assign the installed replica to a membership that starts from it."""
        if self.installed is not None:
            copy = dataclasses.replace(self.installed.copy, membership=membership, seconds=0.0)
            self._store.on_membership(copy.digest, membership, members, self._is_wanted)
            self.installed = dataclasses.replace(self.installed, copy=copy)
