"""Objects of one kind in memory, by name and by job. Every change is reported once.

May not: know where a change comes from.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

DELETED_KEPT = 1000  # UIDs of the last deletions, which no late answer undoes


class Item(Protocol):
    """An object as the store keeps it."""

    @property
    def namespace(self) -> str:
        """Namespace of the object."""

    @property
    def name(self) -> str:
        """Name of the object."""

    @property
    def uid(self) -> str:
        """UID of the object; a successor with its name has another UID."""

    @property
    def version(self) -> str:
        """Resource version of the object."""

    @property
    def job(self) -> str:
        """Name of the job that owns the object."""


T = TypeVar("T", bound=Item)
Key = tuple[str, str]  # namespace and name


class ObjectStore(Generic[T]):
    """The newest known version of each object."""

    def __init__(self, on_change: Callable[[T], None]) -> None:
        self._on_change = on_change
        self._items: dict[Key, T] = {}
        self._jobs: dict[Key, dict[str, T]] = {}
        self._deleted: deque[str] = deque(maxlen=DELETED_KEPT)  # UIDs

    def by_job(self, namespace: str, job: str) -> tuple[T, ...]:
        """Return the objects of one job, ordered by name."""
        return tuple(item for _, item in sorted(self._jobs.get((namespace, job), {}).items()))

    def items(self) -> tuple[T, ...]:
        """Return all objects."""
        return tuple(self._items.values())

    def get(self, key: Key) -> T | None:
        """Return an object, or None."""
        return self._items.get(key)

    def is_newer(self, item: T) -> bool:
        """Return whether the store has no version of the object, or an older one."""
        old = self._items.get((item.namespace, item.name))
        return old is None or int(old.version) < int(item.version)

    def was_deleted(self, item: T) -> bool:
        """Return whether the object was removed before."""
        return item.uid in self._deleted

    def set(self, item: T) -> None:
        """Store a version of an object; a change of its job is a change for both jobs."""
        key = item.namespace, item.name
        old = self._items.get(key)
        if old is not None:
            self._unindex(old)
        self._items[key] = item
        self._jobs.setdefault((item.namespace, item.job), {})[item.name] = item
        if old is not None and old.job != item.job:
            self._on_change(old)
        self._on_change(item)

    def drop(self, key: Key, uid: str) -> bool:
        """Remove an object, but no successor of its name; return whether the store had it."""
        old = self._items.get(key)
        if old is None or old.uid != uid:
            return False
        self.remove(key)
        return True

    def remove(self, key: Key) -> None:
        """Remove the object of this name."""
        item = self._items.pop(key)
        self._deleted.append(item.uid)
        self._unindex(item)
        self._on_change(item)

    def _unindex(self, item: T) -> None:
        job = self._jobs[item.namespace, item.job]
        del job[item.name]
        if not job:
            del self._jobs[item.namespace, item.job]
