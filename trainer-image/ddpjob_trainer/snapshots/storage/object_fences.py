"""Fences as objects that are created only if the name is free, so only one process gets a number.

The store must support this condition, which the first creation verifies. This module does not
depend on a fence's contents.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ddpjob_trainer.errors import SnapshotError

if TYPE_CHECKING:
    from ddpjob_trainer.snapshots.storage.obstore_client import ObjectClient


class ObjectFences:
    """The fences below one prefix."""

    def __init__(self, objects: ObjectClient) -> None:
        self._objects = objects
        self.where = objects.uri
        self._is_proven = False

    def numbers(self) -> list[int]:
        """Return the numbers of the existing fences. Raise OSError."""
        found = (re.fullmatch(r"fence-(\d{12})\.json", name) for name in self._objects.list())
        return [int(match[1]) for match in found if match]

    def read(self, number: int) -> bytes | None:
        """Return a record; None if there is no such record. Raise OSError."""
        return self._objects.get(self._name(number))

    def create(self, number: int, record: bytes) -> bool:
        """Create a record; return False if the number is in use.

        Raise OSError, and SnapshotError if the store also accepts a second creation.
        """
        name = self._name(number)
        if not self._objects.create(name, record):
            return False
        if not self._is_proven and self._objects.create(name, record):
            raise SnapshotError(
                f"The store of {self.where} replaces an object in spite of a request to create it only if "
                "there is none (If-None-Match: *). Without that a process that was cut off could "
                "spoil snapshots. Use a store that honours it, or a directory."
            )
        self._is_proven = True
        return True

    def delete(self, number: int) -> None:
        """Delete a record. Raise OSError."""
        self._objects.delete(self._name(number))

    def name(self, number: int) -> str:
        """Return the record's name for log lines and errors."""
        return f"{self.where}/{self._name(number)}"

    def _name(self, number: int) -> str:
        return f"fence-{number:012d}.json"
