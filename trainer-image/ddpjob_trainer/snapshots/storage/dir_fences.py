"""Fences as folders: a complete folder is renamed to its number, so only one process gets it.

The only requirement is an atomic rename. This module does not depend on a fence's contents.
"""

from __future__ import annotations

import errno
import re
import secrets
import shutil
from typing import TYPE_CHECKING

from ddpjob_trainer.snapshots.storage import durable

if TYPE_CHECKING:
    from pathlib import Path

RECORD = "fence.json"
RECORD_BYTES = 1 << 20  # more than it ever has


class DirectoryFences:
    """The fences in one directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.where = str(directory)

    def numbers(self) -> list[int]:
        """Return the numbers of the existing fences. Raise OSError."""
        try:
            names = [path.name for path in self._directory.iterdir()]
        except FileNotFoundError:
            return []
        return [int(match[1]) for name in names if (match := re.fullmatch(r"fence-(\d{12})", name))]

    def read(self, number: int) -> bytes | None:
        """Return a record; None if there is no such record. Raise OSError or ValueError."""
        try:
            return durable.read(self._path(number) / RECORD, RECORD_BYTES)
        except FileNotFoundError:
            return None

    def create(self, number: int, record: bytes) -> bool:
        """Create a record; return False if the number is in use. Raise OSError."""
        target = self._path(number)
        aside = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
        self._directory.mkdir(parents=True, exist_ok=True)
        try:
            aside.mkdir()
            durable.write(aside / RECORD, record)
            durable.sync(aside)
            aside.rename(target)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                return False
            raise
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        durable.sync(self._directory)
        return True

    def delete(self, number: int) -> None:
        """Delete a record as far as possible."""
        shutil.rmtree(self._path(number), ignore_errors=True)

    def name(self, number: int) -> str:
        """Return the record's name for log lines and errors."""
        return str(self._path(number) / RECORD)

    def _path(self, number: int) -> Path:
        return self._directory / f"fence-{number:012d}"
