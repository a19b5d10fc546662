"""Fences as files, each alone in a folder that only one process can create.

This module does not depend on a fence's contents.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddpjob_trainer.snapshots.storage.base import FileStore


class FenceFiles:
    """The fences of one storage."""

    def __init__(self, files: FileStore) -> None:
        self._files = files
        self.where = files.where

    def numbers(self) -> list[int]:
        """Return the numbers of the existing fences. Raise OSError."""
        found = (re.fullmatch(r"fence-(\d{12})/.*", name) for name in self._files.list())
        return [int(match[1]) for match in found if match]

    def read(self, number: int) -> bytes | None:
        """Return a record; None if there is no such record. Raise OSError or ValueError."""
        return self._files.get(_path(number))

    def create(self, number: int, record: bytes) -> bool:
        """Create a record; return False if the number is in use. Raise OSError or SnapshotError."""
        return self._files.create(_path(number), record)

    def delete(self, number: int) -> None:
        """Delete a record. Raise OSError."""
        self._files.delete_folder(_folder(number), [_path(number)])

    def name(self, number: int) -> str:
        """Return the record's name for log lines and errors."""
        return f"{self.where}/{_path(number)}"


def _folder(number: int) -> str:
    return f"fence-{number:012d}"


def _path(number: int) -> str:
    return f"{_folder(number)}/fence.json"
