"""The files that a script saves its state to, where the script has them.

Named by the job: a file, a pattern (`ckpt/*.pt`), or a directory, for all files in it. Those whose
names begin with a dot are no part of it: so writers call what is not finished. What stands in the
way of a copy is renamed (`.NAME.ddpjob-aside`), never deleted.
May not: keep copies, or know of memberships and other workers.
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
    from collections.abc import Iterator, Sequence

CHUNK_BYTES = 1 << 20
SUFFIX = "ddpjob"
ASIDE = f"{SUFFIX}-aside"


class CancelledReadError(Exception):
    """What was being done is not wanted any more."""


class ChangedError(Exception):
    """A file was written to while it was read."""


class FileFingerprint(NamedTuple):
    """What shows that a file has been written to."""

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
        self._mark = f"{SUFFIX}-{worker}"

    def path(self, name: str) -> str:
        """Where this file is."""
        return os.path.join(self._folder, name)

    def fingerprint(self) -> tuple[FileFingerprint, ...]:
        """All files that are there now, in the order of their names."""
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
        """Which of these files is not whole, and why; empty when all are."""
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
        """Copy each file to its target, if it has one; raises ChangedError, OSError.

        What was read is what `seen` tells of, or nobody's.
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
        """What is there, if that is just these files."""
        seen = self.fingerprint()
        if [each[:2] for each in seen] != [part[:2] for part in parts]:
            return None
        try:
            same = self.read(seen, [None] * len(seen), wanted)
        except (ChangedError, OSError):
            return None
        return seen if [each[:3] for each in same] == [part[:3] for part in parts] else None

    def stage(self, parts: Sequence[FileEntry]) -> list[str]:
        """Where to put each of these files before `commit`; raises OSError."""
        targets = [self._hidden_name(part.name, self._mark) for part in parts]
        for target in targets:
            os.makedirs(os.path.dirname(target), exist_ok=True)
        return targets

    def commit(
        self, parts: Sequence[FileEntry], targets: Sequence[str]
    ) -> tuple[FileFingerprint, ...]:
        """Put what lies at the targets in place, and all else aside; raises OSError."""
        wanted = {part.name for part in parts}
        self.quarantine([each.name for each in self.fingerprint() if each.name not in wanted])
        for part, target in zip(parts, targets):
            os.chmod(target, part.mode)
            sync(target)
            os.replace(target, self.path(part.name))
        for folder in {os.path.dirname(target) for target in targets}:
            sync(folder)
        return self.fingerprint()

    def quarantine(self, names: Sequence[str]) -> None:
        """These files are not to be found by the script."""
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # on a shared volume another was faster
                os.replace(self.path(name), self._hidden_name(name, ASIDE))

    def is_tidy(self) -> bool:
        """Whether no directory is left over in which there is nothing for the script."""
        return not any(map(self._is_left_over, self._folders()))

    def remove_leftover_dirs(self) -> None:
        """Scripts choose among directories by name: none stays that has nothing for them.

        An empty one is removed; one in which all was put aside is itself put aside. Not while any
        worker's processes run: they may be about to write there.
        """
        for folder in self._folders():
            path = self.path(folder)
            if self._is_left_over(folder):
                with contextlib.suppress(OSError):  # on a shared volume another was faster
                    if os.listdir(path):
                        os.rename(path, _free(self._hidden_name(folder, ASIDE)))
                    else:
                        os.rmdir(path)

    def _is_left_over(self, folder: str) -> bool:
        try:
            return all(each.endswith(ASIDE) for each in os.listdir(self.path(folder)))
        except OSError:
            return False

    def _folders(self) -> list[str]:
        """Directories within those that the job names, the inner ones first."""
        found: list[str] = []
        for entry in map(os.path.normpath, self._entries):
            for top in self._match(entry):
                below = [folder for folder, _, _ in os.walk(self.path(top), topdown=False)]
                found += below[:-1] if top == entry else below
        return found

    def discard(self, targets: Sequence[str]) -> None:
        """What was staged is not wanted."""
        for target in targets:
            with contextlib.suppress(OSError):
                os.unlink(target)

    def _hidden_name(self, name: str, mark: str) -> str:
        folder, base = os.path.split(self.path(name))
        return os.path.join(folder, f".{base}.{mark}")


def copy_file(source: str, target: str | None, wanted: Wanted) -> str:
    """Copy a file, or only read it, and return its digest; raises OSError, GivenUpError."""
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
    """This name, or the first with a number that is nobody's yet."""
    numbered = (f"{path[: -len(ASIDE)]}{number}.{ASIDE}" for number in itertools.count(2))
    return next(each for each in itertools.chain([path], numbered) if not os.path.lexists(each))


def sync(path: str) -> None:
    """Let the disk have what was written to a file or directory; raises OSError."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
