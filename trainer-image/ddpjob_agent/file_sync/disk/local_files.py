"""The files that a script saves its state to, at the script's own paths.

The job names a file, a pattern (`ckpt/*.pt`), or a directory with all its files. Files whose names
begin with a dot are ignored: writers use such names for unfinished files. Files in the way of a
replica are quarantined: renamed to `.NAME.ddpjob-aside`, never deleted.
Reads follow links of the script. Writes follow only links in the folders that an absolute entry
names, as they are when the agent starts.
May not: store replicas, or know of memberships and other workers.
"""

from __future__ import annotations

import contextlib
import glob
import itertools
import os
import stat
from typing import IO, TYPE_CHECKING, NamedTuple

from ddpjob_agent.file_sync.decisions.replica import FileEntry
from ddpjob_agent.file_sync.disk import places
from ddpjob_agent.file_sync.disk.file_copy import copy_file
from ddpjob_agent.file_sync.disk.integrity import find_corruption, find_folder_corruption
from ddpjob_agent.file_sync.disk.places import Place

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from ddpjob_agent.file_sync.disk.file_copy import Wanted

SUFFIX = "ddpjob"
ASIDE = f"{SUFFIX}-aside"
PARTIAL = f".{SUFFIX}.partial"  # exists while files of two states may lie side by side


class ChangedError(Exception):
    """A file changed during a read."""


class FileFingerprint(NamedTuple):
    """Metadata of a file; a write to the file changes it."""

    name: str
    size: int
    modified: int  # ns
    number: int  # inode


class TrackedFiles:
    """The files of one worker; relative names are below `folder`."""

    def __init__(self, entries: Sequence[str], folder: str, worker: str) -> None:
        self.entries = tuple(entries)
        self._resolved = _resolve_folders(entries)
        self._folder = folder
        self._worker = worker
        first = _folder_of(os.path.normpath(entries[0])) if entries else ""
        self._partial = self.place(os.path.join(first, PARTIAL))

    def path(self, name: str) -> str:
        """Return the path of a file, for readers."""
        return os.path.join(self._folder, name)

    def open(self, name: str) -> IO[bytes]:
        """Open a file, also one that the script made a link. Raises OSError."""
        return open(self.path(name), "rb")

    def place(self, name: str) -> Place:
        """Return the place of a file or folder, for writers."""
        if not os.path.isabs(name):
            return Place(self._folder, name)
        for folder, resolved in self._resolved:
            if os.path.commonpath([folder, name]) == folder:
                name = os.path.join(resolved, os.path.relpath(name, folder))
                break
        return Place("/", os.path.normpath(name).lstrip("/"))

    def fingerprint(self) -> tuple[FileFingerprint, ...]:
        """Return the fingerprints of all existing files, ordered by name."""
        found = {}
        for name in {name for entry in self.entries for name in self._expand(entry)}:
            with contextlib.suppress(OSError):
                status = os.stat(self.path(name))
                if stat.S_ISREG(status.st_mode):
                    facts = (status.st_size, status.st_mtime_ns, status.st_ino)
                    found[name] = FileFingerprint(name, *facts)
        return tuple(found[name] for name in sorted(found))

    def _expand(self, entry: str) -> Iterator[str]:
        for name in self._match(os.path.normpath(entry)):
            if os.path.isdir(self.path(name)):
                for folder, inner, files in os.walk(self.path(name)):
                    inner[:] = [each for each in inner if not each.startswith(".")]
                    below = os.path.relpath(folder, self.path(name))
                    kept = (each for each in files if not each.startswith("."))
                    yield from (os.path.normpath(os.path.join(name, below, f)) for f in kept)
            else:
                yield name

    def _match(self, entry: str) -> list[str]:
        if not glob.has_magic(entry) or os.path.exists(self.path(entry)):
            return [entry]
        if os.path.isabs(entry):
            names = glob.glob(entry, recursive=True)
        else:
            found = glob.glob(os.path.join(glob.escape(self._folder), entry), recursive=True)
            names = [os.path.relpath(path, self._folder) for path in found]
        return [name for name in names if not self._is_behind_link(name)]

    def _is_behind_link(self, name: str) -> bool:
        path = self.path(name)
        is_link_to_folder = os.path.islink(path) and os.path.isdir(path)
        return is_link_to_folder or not places.exists(self.place(name))

    def find_corruption(self, seen: Sequence[FileFingerprint]) -> str:
        """Return the first corrupt file with its corruption, or an empty text."""
        for each in seen:
            try:
                with self.open(each.name) as file:
                    damage = find_corruption(file, each.size, each.name)
            except OSError as error:
                damage = f"it cannot be read: {error.strerror}"
            if damage:
                return f"{each.name} is not whole: {damage}"
        return find_folder_corruption(each.name for each in seen)

    def read(
        self, seen: Sequence[FileFingerprint], targets: Sequence[Place | None], wanted: Wanted
    ) -> tuple[FileEntry, ...]:
        """Read each file, and copy it to its target if there is one.

        Raises OSError, and ChangedError if the files no longer match `seen`.
        """
        parts = []
        for each, target in zip(seen, targets):
            try:
                source = self.open(each.name)
            except FileNotFoundError as error:
                raise ChangedError(each.name) from error
            mode = stat.S_IMODE(os.fstat(source.fileno()).st_mode)
            digest = copy_file(source, target, each.size, wanted)
            parts.append(FileEntry(each.name, each.size, digest, mode))
        if self.fingerprint() != tuple(seen):
            raise ChangedError(", ".join(each.name for each in seen))
        return tuple(parts)

    def holds(
        self, parts: Sequence[FileEntry], wanted: Wanted
    ) -> tuple[FileFingerprint, ...] | None:
        """Return the fingerprints of the files if they match `parts` exactly; None otherwise."""
        seen = self.fingerprint()
        if [each[:2] for each in seen] != [part[:2] for part in parts]:
            return None
        try:
            same = self.read(seen, [None] * len(seen), wanted)
        except (ChangedError, OSError):
            return None
        return seen if [each[:3] for each in same] == [part[:3] for part in parts] else None

    def check_folders(self) -> None:
        """Raise OSError if a link is in the way to an entry, which no write would follow."""
        for entry in map(os.path.normpath, self.entries):
            folder = entry if os.path.isdir(self.path(entry)) else _folder_of(entry)
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                places.check(self.place(folder))

    def stage(self, parts: Sequence[FileEntry]) -> list[Place]:
        """Return the place to write each file to before `commit`. Raises OSError."""
        targets = [self._hidden(part.name, f"{SUFFIX}-{self._worker}") for part in parts]
        for folder in {target.folder for target in targets}:
            places.check(folder, make=True)
        return targets

    def commit(
        self, parts: Sequence[FileEntry], targets: Sequence[Place]
    ) -> tuple[FileFingerprint, ...]:
        """Move the targets to the paths of the files; quarantine all others. Raises OSError."""
        names = {part.name for part in parts}
        others = [each.name for each in self.fingerprint() if each.name not in names]
        for part, target in zip(parts, targets):
            places.complete(target, part.mode)
        if len(parts) + len(others) > 1:
            places.check(self._partial.folder, make=True)
            places.create(self._partial).close()
            places.sync_folder(self._partial.folder)
        self.quarantine(others)
        for part, target in zip(parts, targets):
            places.move(target, self.place(part.name))
        for folder in {target.folder for target in targets}:
            places.sync_folder(folder)
        return self.fingerprint()

    def is_partial(self) -> bool:
        """Return whether an installation was interrupted between its first and its last file."""
        return places.exists(self._partial)

    def quarantine(self, names: Sequence[str]) -> None:
        """Rename these files, so that the script does not find them."""
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # another worker did it, if shared
                places.move(self.place(name), self._hidden(name, ASIDE))

    def is_tidy(self) -> bool:
        """Return whether no directory is empty of files for the script."""
        return not any(map(self._is_left_over, self._folders()))

    def tidy(self) -> None:
        """End an installation: remove empty directories, quarantine those with quarantined files.

        Scripts choose among directories by name, and must not find one without files. Call it only
        while no worker's processes run: a process may be about to write to a directory.
        """
        for folder in self._folders():
            if self._is_left_over(folder):
                with contextlib.suppress(OSError):  # another worker did it on a shared volume
                    if places.names_in(self.place(folder)):
                        places.move(self.place(folder), _free(self._hidden(folder, ASIDE)))
                    else:
                        places.remove_folder(self.place(folder))
        with contextlib.suppress(FileNotFoundError):
            places.remove(self._partial)
            places.sync_folder(self._partial.folder)

    def _is_left_over(self, folder: str) -> bool:
        try:
            return all(each.endswith(ASIDE) for each in places.names_in(self.place(folder)))
        except OSError:
            return False

    def _folders(self) -> list[str]:
        """Return the subdirectories of the job's directories, inner ones first."""
        found: list[str] = []
        for entry in map(os.path.normpath, self.entries):
            for top in self._match(entry):
                below = [folder for folder, _, _ in os.walk(self.path(top), topdown=False)]
                found += below[:-1] if top == entry else below
        return found

    @staticmethod
    def discard(targets: Sequence[Place]) -> None:
        """Delete staged files."""
        for target in targets:
            with contextlib.suppress(OSError):
                places.remove(target)

    def remove_staged(self, members: Collection[str]) -> None:
        """Delete files that a killed agent staged: of this worker, or of one outside `members`."""
        folders = set(self._folders())
        for entry in map(os.path.normpath, self.entries):
            folders.update(self._match(os.path.dirname(entry)), self._match(entry))
        for folder in map(self.place, folders):
            with contextlib.suppress(OSError):  # a file, or no directory yet
                for name in places.names_in(folder):
                    _, found, worker = name.rpartition(f".{SUFFIX}-")
                    is_stale = worker == self._worker or worker not in members
                    if found and is_stale and name.startswith(".") and not name.endswith(ASIDE):
                        places.remove(folder.below(name))

    def _hidden(self, name: str, mark: str) -> Place:
        place = self.place(name)
        return place.folder.below(f".{place.base}.{mark}")


def _free(place: Place) -> Place:
    """Return this place, or the first free place with a number."""
    start = place.base[: -len(ASIDE)]
    numbered = (place.folder.below(f"{start}{n}.{ASIDE}") for n in itertools.count(2))
    return next(each for each in itertools.chain([place], numbered) if not places.exists(each))


def _folder_of(entry: str) -> str:
    """Return the folder of an entry, without patterns."""
    folder = os.path.dirname(entry)
    while glob.has_magic(folder):
        folder = os.path.dirname(folder)
    return folder


def _resolve_folders(entries: Sequence[str]) -> list[tuple[str, str]]:
    """Return the folders of absolute entries, inner ones first, each with its path without links."""
    folders = {_folder_of(os.path.normpath(entry)) for entry in entries if os.path.isabs(entry)}
    return [(each, os.path.realpath(each)) for each in sorted(folders, key=len, reverse=True)]
