"""Fences as objects that are created only if there is none of that name, so two cannot have one.

Needs a store that honours that condition, and finds out. Knows nothing of what a fence says.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ddpjob_trainer.errors import SnapshotError

if TYPE_CHECKING:
    from ddpjob_trainer.snapshots.storage.obstore_client import ObjectClient


class ObjectFences:
    """Those below one prefix."""

    def __init__(self, objects: ObjectClient) -> None:
        self._objects = objects
        self.where = objects.uri
        self._is_proven = False

    def numbers(self) -> list[int]:
        """Of those that there are. Raises OSError."""
        found = (re.fullmatch(r"fence-(\d{12})\.json", name) for name in self._objects.list())
        return [int(match[1]) for match in found if match]

    def read(self, number: int) -> bytes | None:
        """Raises OSError."""
        return self._objects.get(self._name(number))

    def create(self, number: int, record: bytes) -> bool:
        """False if the number is taken. Raises OSError, and SnapshotError if nobody is refused."""
        name = self._name(number)
        if not self._objects.create(name, record):
            return False
        if not self._is_proven and self._objects.create(name, record):
            raise SnapshotError(
                f"The store of {self.where} replaces an object that it was told to create only if "
                "there is none (If-None-Match: *). Without that a process that was cut off could "
                "spoil snapshots. Use a store that honours it, or a directory."
            )
        self._is_proven = True
        return True

    def delete(self, number: int) -> None:
        """Raises OSError."""
        self._objects.delete(self._name(number))

    def name(self, number: int) -> str:
        """For people."""
        return f"{self.where}/{self._name(number)}"

    def _name(self, number: int) -> str:
        return f"fence-{number:012d}.json"
