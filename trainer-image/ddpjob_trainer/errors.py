"""The exceptions that the trainer library raises on purpose. Imports nothing."""

from __future__ import annotations


class SnapshotError(RuntimeError):
    """A snapshot cannot be saved or loaded; the text gives the cause and what to do next."""


class FencedError(SnapshotError):
    """Somebody else has gone on from the directory: what is saved now would not count."""


class StorageUnavailableError(SnapshotError):
    """The place for snapshots cannot be reached just now: training goes on, a later one may work."""
