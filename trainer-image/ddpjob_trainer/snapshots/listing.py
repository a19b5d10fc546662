"""The list of the snapshots in a storage: a table for people, JSON for programs.

May not: import torch. A list reads manifests only.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from ddpjob_protocol.text import byte_size, columns, duration
from ddpjob_trainer.snapshots.model import manifest
from ddpjob_trainer.snapshots.model.manifest import UnusableError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddpjob_trainer.snapshots.storage.snapshot_storage import SnapshotStorage

HEADS = ("STEP", "SIZE", "AGE", "WRITER", "STATE")
COMPLETE, FENCED, UNUSABLE = "complete", "fenced", "unusable"
NONE = "-"


class Entry(NamedTuple):
    """One snapshot."""

    step: int
    size: int  # bytes
    written: float  # seconds since 1970
    writer: str  # empty: not known, or no job
    state: str
    reason: str = ""  # of a snapshot that does not count


def read_entries(storage: SnapshotStorage) -> list[Entry]:
    """Return all snapshots, newest first. Raise OSError."""
    counting = set(storage.steps())
    return [_read_entry(storage, step, counts=step in counting) for step in storage.all_steps()]


def build_table(entries: Sequence[Entry], now: float) -> list[str]:
    """Return the lines of a table with heads."""
    rows = [
        (
            str(each.step),
            byte_size(each.size),
            duration(now - each.written),
            each.writer or NONE,
            f"{each.state}: {each.reason}" if each.reason else each.state,
        )
        for each in entries
    ]
    return columns([HEADS, *rows])


def build_json(entries: Sequence[Entry]) -> str:
    """Return the snapshots as JSON, with times in UTC."""
    found = [
        {
            **each._asdict(),
            "written": datetime.fromtimestamp(each.written, UTC).isoformat(),
        }
        for each in entries
    ]
    return json.dumps(found, indent=2)


def _read_entry(storage: SnapshotStorage, step: int, *, counts: bool) -> Entry:
    size, written = storage.info(step)
    try:
        owner = manifest.writer_of(storage.check(step, content=False))
    except UnusableError as error:
        return Entry(step, size, written, "", UNUSABLE, str(error))
    writer = str(owner) if owner.job else ""
    if counts:
        return Entry(step, size, written, writer, COMPLETE)
    return Entry(step, size, written, writer, FENCED, "does not count")
