"""The files below a directory: each is durable, and complete or absent.

A file, and the folder of a fence, get their names by a rename, which must be atomic. Folders are
deleted by a rename to a hidden name, so no process sees a part of one or writes into it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
from typing import TYPE_CHECKING

from ddpjob_trainer.snapshots.storage import durable, volume
from ddpjob_trainer.snapshots.storage.base import OWN_FOLDERS, SMALL_BYTES, FileInfo

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from ddpjob_trainer.collectives import StorageGroup

TAKEN = (errno.ENOTEMPTY, errno.EEXIST)


class DirectoryFiles:
    """The files below one directory."""

    readers = 1
    passes_errors = True

    def __init__(self, directory: Path, limit: int | None = None) -> None:
        """Take the directory, which need not exist, and the limit of its volume in bytes."""
        self.directory = directory
        self.where = str(directory)
        self.how_to_reset = f"mv {directory} {directory}.old"
        self.limit = limit

    def group(self) -> StorageGroup:
        """Return the ranks with this directory."""
        from ddpjob_trainer import collectives  # noqa: PLC0415 - a list of snapshots needs no torch

        ranks, storages = collectives.ranks_sharing(self.directory)
        return collectives.StorageGroup(ranks, ranks, storages)

    def list(self) -> dict[str, FileInfo]:
        """Return all complete files, and each empty folder, whose name ends with a slash."""
        found: dict[str, FileInfo] = {}
        for folder in _entries(self.directory):
            if folder.is_dir() and folder.name.startswith(OWN_FOLDERS):
                found |= _files_below(folder, f"{folder.name}/")
        return found

    def get(self, name: str) -> bytes | None:
        """Return a small file; None if there is none."""
        try:
            return durable.read(self.directory / name, SMALL_BYTES)
        except FileNotFoundError:
            return None

    def read(self, name: str, begin: int, into: Sequence[memoryview]) -> bool:
        """Fill the memory with a file's bytes from `begin` on; return False if there is no file."""
        try:
            file = (self.directory / name).open("rb", buffering=0)
        except FileNotFoundError:
            return False
        with file:
            file.seek(begin)
            for view in into:
                rest = view
                while rest:
                    count = file.readinto(rest)
                    if not count:
                        raise ValueError(f"{name} ends early")
                    rest = rest[count:]
        return True

    def upload(self, name: str, chunks: Iterator[memoryview], size: int) -> None:
        """Write a file durably, instead of an earlier one."""
        del size
        path = self.directory / name
        self._make_folder(path.parent)
        path.unlink(missing_ok=True)
        durable.write_all(chunks, path)
        durable.sync(path.parent)

    def put(self, name: str, content: bytes) -> None:
        """Write a file durably into a folder that exists; it is complete or absent."""
        path = self.directory / name
        aside = _hidden(path)
        try:
            durable.write(aside, content)
            aside.rename(path)
        except OSError:
            with contextlib.suppress(OSError):
                aside.unlink(missing_ok=True)
            raise
        durable.sync(path.parent)

    def create(self, name: str, content: bytes) -> bool:
        """Write the only file of a folder; return False if the folder exists."""
        path = self.directory / name
        folder, aside = path.parent, _hidden(path.parent)
        self.directory.mkdir(parents=True, exist_ok=True)
        self._clear_deleted()
        aside.mkdir()
        try:
            durable.write(aside / path.name, content)
            durable.sync(aside)
            aside.rename(folder)
        except OSError as error:
            if (
                error.errno in TAKEN or not aside.exists()
            ):  # the process with that name has cleared it
                return False
            raise
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        durable.sync(self.directory)
        for each in self.directory.glob(f".{folder.name}.*{volume.HIDDEN}"):
            shutil.rmtree(each, ignore_errors=True)
        return True

    def delete(self, *names: str) -> None:
        """Delete files, even if they do not exist."""
        for name in names:
            (self.directory / name).unlink(missing_ok=True)

    def delete_folder(self, folder: str, names: Sequence[str]) -> None:
        """Delete a folder at once."""
        del names
        path = self.directory / folder
        doomed = _hidden(path)
        with contextlib.suppress(FileNotFoundError):
            path.rename(doomed)
            durable.sync(path.parent)
            shutil.rmtree(doomed, ignore_errors=True)
        if path.parent != self.directory:
            _remove_empty(path.parent)

    def used(self) -> int:
        """Return the bytes of all files in the volume."""
        return volume.used(self.directory)

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

    def is_damage(self, error: OSError) -> bool:
        """Return True: the disk does not return the file, and another directory may have it."""
        del error
        return True

    def _make_folder(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except FileNotFoundError:  # another writer has just removed the empty folder around it
            folder.mkdir(parents=True, exist_ok=True)
        durable.sync(folder.parent)
        durable.sync(self.directory)

    def _clear_deleted(self) -> None:
        """Remove what a process that was killed while it deleted has left."""
        for step in self.directory.glob("step-*"):
            for doomed in step.glob(f".*{volume.HIDDEN}"):
                shutil.rmtree(doomed, ignore_errors=True)
            _remove_empty(step)


def _hidden(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}{volume.HIDDEN}")


def _remove_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()


def _files_below(folder: os.DirEntry[str], name: str) -> dict[str, FileInfo]:
    found: dict[str, FileInfo] = {}
    for entry in _entries(folder):
        with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
            if entry.is_dir():
                below = f"{name}{entry.name}/"
                found |= _files_below(entry, below) or {below: _info(entry)}
            elif entry.is_file():
                found[f"{name}{entry.name}"] = _info(entry)
    return found


def _entries(folder: Path | os.DirEntry[str]) -> list[os.DirEntry[str]]:
    """Return the entries that are not hidden; none if there is no folder. Raise OSError."""
    try:
        with os.scandir(folder) as found:
            return [entry for entry in found if entry.name[0] != "."]
    except FileNotFoundError:
        return []


def _info(entry: os.DirEntry[str]) -> FileInfo:
    found = entry.stat()
    return FileInfo(found.st_size, found.st_mtime)
