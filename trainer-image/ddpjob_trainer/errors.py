"""Exceptions of the trainer library. Imports nothing."""

from __future__ import annotations


class SnapshotError(RuntimeError):
    """A snapshot cannot be saved or loaded; the text has the cause and the remedy."""


class FencedError(SnapshotError):
    """A newer membership uses the storage, so a snapshot of this process would not count."""


class StateChangedError(SnapshotError):
    """The state was changed while it was copied, so that snapshot is dropped."""


class StorageUnavailableError(SnapshotError):
    """The storage is unavailable for now; training continues, and a later snapshot may succeed."""


class NoCopyMemoryError(SnapshotError):
    """There is no memory for a copy of the state; it can be written without a copy."""
