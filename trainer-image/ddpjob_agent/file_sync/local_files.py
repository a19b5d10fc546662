"""The files that a script saves its state to, at the script's own paths.

The job names a file, a pattern (`ckpt/*.pt`), or a directory with all its files. Files whose names
begin with a dot are ignored: writers use such names for unfinished files. Files in the way of a
replica are quarantined: renamed to `.NAME.ddpjob-aside`, never deleted.
May not: store replicas, or know of memberships and other workers.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import itertools
import os
import stat
from typing import TYPE_CHECKING, Callable, NamedTuple

from ddpjob_agent.file_sync.integrity import find_corruption, find_folder_corruption
from ddpjob_agent.file_sync.replica import FileEntry

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

CHUNK_BYTES = 1 << 20
SUFFIX = "ddpjob"
ASIDE = f"{SUFFIX}-aside"
PARTIAL = f".{SUFFIX}.partial"  # exists while files of two states may lie side by side


class CancelledReadError(Exception):
    """A read was cancelled."""


class ChangedError(Exception):
    """A file changed during a read."""


class FileFingerprint(NamedTuple):
    """Metadata of a file; a write to the file changes it."""

    name: str
    size: int
    modified: int  # ns
    number: int  # inode


Wanted = Callable[[], bool]


class TrackedFiles:
    """The files of one worker; relative names are below `folder`."""

    def __init__(self, entries: Sequence[str], folder: str, worker: str) -> None:
        self._entries = entries
        self._folder = folder
        self._worker = worker
        folder = os.path.dirname(os.path.normpath(entries[0])) if entries else ""
        while glob.has_magic(folder):
            folder = os.path.dirname(folder)
        self._partial = os.path.join(self.path(folder), PARTIAL)

    def path(self, name: str) -> str:
        """Return the path of a file."""
        return os.path.join(self._folder, name)

    def fingerprint(self) -> tuple[FileFingerprint, ...]:
        """Return the fingerprints of all existing files, ordered by name."""
        found = {}
        for name in {name for entry in self._entries for name in self._expand(entry)}:
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
            return glob.glob(entry, recursive=True)
        found = glob.glob(os.path.join(glob.escape(self._folder), entry), recursive=True)
        return [os.path.relpath(path, self._folder) for path in found]

    def find_corruption(self, seen: Sequence[FileFingerprint]) -> str:
        """Return the first corrupt file with its corruption, or an empty text."""
        for each in seen:
            try:
                with open(self.path(each.name), "rb") as file:
                    damage = find_corruption(file, each.size, each.name)
            except OSError as error:
                damage = f"it cannot be read: {error.strerror}"
            if damage:
                return f"{each.name} is not whole: {damage}"
        return find_folder_corruption(each.name for each in seen)

    def read(
        self, seen: Sequence[FileFingerprint], targets: Sequence[str | None], wanted: Wanted
    ) -> tuple[FileEntry, ...]:
        """Read each file, and copy it to its target if there is one.

        Raises OSError, and ChangedError if the files no longer match `seen`.
        """
        parts = []
        for each, target in zip(seen, targets):
            source = self.path(each.name)
            try:
                digest = copy_file(source, target, wanted)
                mode = stat.S_IMODE(os.stat(source).st_mode)
            except FileNotFoundError as error:
                raise ChangedError(each.name) from error
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

    def stage(self, parts: Sequence[FileEntry]) -> list[str]:
        """Return the path to write each file to before `commit`. Raises OSError."""
        targets = [self._hidden_name(part.name, f"{SUFFIX}-{self._worker}") for part in parts]
        for target in targets:
            os.makedirs(os.path.dirname(target), exist_ok=True)
        return targets

    def commit(
        self, parts: Sequence[FileEntry], targets: Sequence[str]
    ) -> tuple[FileFingerprint, ...]:
        """Move the targets to the paths of the files; quarantine all others. Raises OSError."""
        names = {part.name for part in parts}
        others = [each.name for each in self.fingerprint() if each.name not in names]
        for part, target in zip(parts, targets):
            os.chmod(target, part.mode)
            sync(target)
        if len(parts) + len(others) > 1:
            os.makedirs(os.path.dirname(self._partial), exist_ok=True)
            os.close(os.open(self._partial, os.O_CREAT, 0o666))
            sync(os.path.dirname(self._partial))
        self.quarantine(others)
        for part, target in zip(parts, targets):
            os.replace(target, self.path(part.name))
        for folder in {os.path.dirname(target) for target in targets}:
            sync(folder)
        return self.fingerprint()

    def is_partial(self) -> bool:
        """Return whether an installation was interrupted between its first and its last file."""
        return os.path.exists(self._partial)

    def quarantine(self, names: Sequence[str]) -> None:
        """Rename these files, so that the script does not find them."""
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # another worker did it, if shared
                os.replace(self.path(name), self._hidden_name(name, ASIDE))

    def is_tidy(self) -> bool:
        """Return whether no directory is empty of files for the script."""
        return not any(map(self._is_left_over, self._folders()))

    def tidy(self) -> None:
        """End an installation: remove empty directories, quarantine those with quarantined files.

        Scripts choose among directories by name, and must not find one without files. Call it only
        while no worker's processes run: a process may be about to write to a directory.
        """
        for folder in self._folders():
            path = self.path(folder)
            if self._is_left_over(folder):
                with contextlib.suppress(OSError):  # another worker did it on a shared volume
                    if os.listdir(path):
                        os.rename(path, _free(self._hidden_name(folder, ASIDE)))
                    else:
                        os.rmdir(path)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._partial)
            sync(os.path.dirname(self._partial))

    def _is_left_over(self, folder: str) -> bool:
        try:
            return all(each.endswith(ASIDE) for each in os.listdir(self.path(folder)))
        except OSError:
            return False

    def _folders(self) -> list[str]:
        """Return the subdirectories of the job's directories, inner ones first."""
        found: list[str] = []
        for entry in map(os.path.normpath, self._entries):
            for top in self._match(entry):
                below = [folder for folder, _, _ in os.walk(self.path(top), topdown=False)]
                found += below[:-1] if top == entry else below
        return found

    @staticmethod
    def discard(targets: Sequence[str]) -> None:
        """Delete staged files."""
        for target in targets:
            with contextlib.suppress(OSError):
                os.unlink(target)

    def remove_staged(self, members: Collection[str]) -> None:
        """Delete files that a killed agent staged: of this worker, or of one outside `members`."""
        folders = set(self._folders())
        for entry in map(os.path.normpath, self._entries):
            folders.update(self._match(os.path.dirname(entry)), self._match(entry))
        for folder in folders:
            with contextlib.suppress(OSError):  # a file, or no directory yet
                for name in os.listdir(self.path(folder)):
                    _, found, worker = name.rpartition(f".{SUFFIX}-")
                    is_stale = worker == self._worker or worker not in members
                    if found and is_stale and name.startswith(".") and not name.endswith(ASIDE):
                        os.unlink(os.path.join(self.path(folder), name))

    def _hidden_name(self, name: str, mark: str) -> str:
        folder, base = os.path.split(self.path(name))
        return os.path.join(folder, f".{base}.{mark}")


def copy_file(source: str, target: str | None, wanted: Wanted) -> str:
    """Copy a file, or only read it; return its digest. Raises OSError and CancelledReadError."""
    digest = hashlib.blake2b(digest_size=16)
    with contextlib.ExitStack() as stack:
        reader = stack.enter_context(open(source, "rb"))
        writer = stack.enter_context(open(target, "wb")) if target else None
        while data := reader.read(CHUNK_BYTES):
            if not wanted():
                raise CancelledReadError
            digest.update(data)
            if writer is not None:
                writer.write(data)
    return digest.hexdigest()


def _free(path: str) -> str:
    """Return this path, or the first free path with a number."""
    numbered = (f"{path[: -len(ASIDE)]}{number}.{ASIDE}" for number in itertools.count(2))
    return next(each for each in itertools.chain([path], numbered) if not os.path.lexists(each))


def sync(path: str) -> None:
    """Flush a file or directory to the disk. Raises OSError."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
