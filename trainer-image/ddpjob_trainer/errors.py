"""The one exception that the trainer library raises on purpose. Imports nothing."""

from __future__ import annotations


class SnapshotError(RuntimeError):
    """A snapshot cannot be saved or loaded; the text gives the cause and what to do next."""
