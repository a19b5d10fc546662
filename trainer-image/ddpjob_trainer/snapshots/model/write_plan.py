"""A snapshot that several ranks write: the tensors of each rank, and the records of finished parts.

Parameters and the optimizer's state are equal on each rank. Each rank writes its part to the
snapshot's storage and leaves a record there. The first writer waits for the records and commits the
snapshot. The ranks need only the common storage: no collective runs during training. This module
must not depend on the kind of storage.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, NamedTuple

from ddpjob_trainer.errors import SnapshotError, StateChangedError
from ddpjob_trainer.snapshots.model import manifest
from ddpjob_trainer.tensors.file_digest import FileDigest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

LEAST_BYTES = 32 << 20  # bytes; a smaller part is not worth another writer
PARTS_SECONDS = 600.0  # seconds; the first writer waits for the other parts after its own part
PAUSES = (0.01, 0.2)  # seconds between two polls for records: first and longest pause


class PartsMissingError(Exception):
    """The other ranks will not write their parts, so this snapshot will not exist."""


class WriteAssignment(NamedTuple):
    """The part of one writer: the tensors of `names`, or all tensors without names."""

    number: int  # 0: the first writer, which also writes unshared state, and commits
    writers: int
    attempt_id: str  # names the common folder of this snapshot's writers
    fence: int  # number of the first writer's fence
    outlines: tuple[str, ...]  # of each part's tensors
    is_cancelled: Callable[[], bool]  # True if no writer needs to wait any more
    names: frozenset[str] | None = None


def never() -> bool:
    """Return False: a single writer waits for no other."""
    return False


ALONE = WriteAssignment(0, 1, "", 0, (), never)


def divide(sizes: Mapping[str, int], writers: int) -> list[frozenset[str]]:
    """Divide the tensors' names into parts of about equal bytes; fewer parts for a small state.

    The result depends only on names and sizes. There is at least one part, even if it is empty.
    """
    count = max(1, min(writers, sum(sizes.values()) // LEAST_BYTES))
    parts: list[set[str]] = [set() for _ in range(count)]
    loads = [0] * count
    for name, size in sorted(sizes.items(), key=lambda each: (-each[1], each[0])):
        least = loads.index(min(loads))
        parts[least].add(name)
        loads[least] += size
    return [frozenset(part) for part in parts]


def is_large(size: int) -> bool:
    """Return whether `size`, the bytes of state equal on all ranks, is worth another writer."""
    return size >= 2 * LEAST_BYTES


def part_report(written: FileDigest, outline: str) -> bytes:
    """Return a writer's record of its durable part."""
    return json.dumps({**written._asdict(), "outline": outline}).encode()


def part_failure(error: Exception) -> bytes:
    """Return a writer's record of a failed part."""
    has_changed = isinstance(error, StateChangedError)
    return json.dumps({"failure": str(error), "changed": has_changed}).encode()


def wait_for_parts(
    part: WriteAssignment, read: Callable[[int], bytes | None]
) -> dict[str, FileDigest]:
    """Wait for the other parts; `read` returns a part's record, or None if there is none yet.

    Return their files by name, in the order of the writers' numbers. Raise PartsMissingError,
    SnapshotError, and the errors of `read`.
    """
    found: dict[int, FileDigest] = {}
    end, pause = time.monotonic() + PARTS_SECONDS, PAUSES[0]
    while True:
        for number in range(1, part.writers):
            if number not in found and (raw := read(number)) is not None:
                found[number] = _judge(raw, part.outlines[number])
        if len(found) == part.writers - 1:
            return {manifest.part_name(number): found[number] for number in sorted(found)}
        if part.is_cancelled():
            raise PartsMissingError
        if time.monotonic() > end:
            raise SnapshotError(
                f"Another rank has not written its part of a snapshot within {PARTS_SECONDS:.0f} s. "
                "Every rank must call save() with the same steps."
            )
        time.sleep(pause)
        pause = min(2 * pause, PAUSES[1])


def _judge(raw: bytes, outline: str) -> FileDigest:
    written = json.loads(raw)
    if written.get("changed"):
        raise StateChangedError(written["failure"])
    if "failure" in written:
        raise SnapshotError(f"Another rank could not write its part: {written['failure']}")
    if written["outline"] != outline:
        raise SnapshotError(
            "The model or the optimizer of another rank has other tensors than those of the first "
            "one: what is not the same on every rank cannot be saved by all of them together. Save "
            "with Snapshots(share=False)."
        )
    return FileDigest(written["size"], written["kind"], written["digest"], tuple(written["blocks"]))
