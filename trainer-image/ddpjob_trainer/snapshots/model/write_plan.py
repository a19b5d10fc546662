"""A snapshot that several ranks write: who writes which tensors, and how the first one hears of it.

Parameters and the optimizer's state are the same on every rank. Each writes its part where the
snapshot will be, and leaves a record of it there; the first one waits for the records, and makes
the snapshot exist. Needs nothing but the place that all of them see: no collective while training
goes on.
May not: know what kind of place it is.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, NamedTuple

from ddpjob_trainer.errors import SnapshotError
from ddpjob_trainer.snapshots.model import manifest
from ddpjob_trainer.tensors.safetensors_writer import FileDigest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

LEAST_BYTES = 32 << 20  # for less than that nobody is asked to write a part
PATIENCE = 600.0  # seconds that the first one waits for the others when it has done its own part
PAUSES = (0.01, 0.2)  # between two looks for records: at first, and at most


class PartsMissingError(Exception):
    """The others will not write their parts any more: there will be no such snapshot."""


class WriteAssignment(NamedTuple):
    """What one of the writers has to do."""

    number: int  # 0: also what is not the same on all ranks; it makes the snapshot exist
    writers: int
    attempt_id: str  # names the place where they meet; of this snapshot only
    fence: int  # number of the first one's
    outlines: tuple[str, ...]  # of each part's tensors
    is_cancelled: Callable[[], bool]  # whether nobody needs to wait any more


def never() -> bool:
    """Who writes alone waits for nobody."""
    return False


ALONE = WriteAssignment(0, 1, "", 0, (), never)


def divide(sizes: Mapping[str, int], writers: int) -> list[frozenset[str]]:
    """The names of each one's tensors, about as many bytes each; fewer writers for a small state.

    The same wherever names and sizes are. Never empty: for nothing there is one part.
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
    """Whether it is worth asking another rank; `size` in bytes, of what is the same on all."""
    return size >= 2 * LEAST_BYTES


def part_report(written: FileDigest, outline: str) -> bytes:
    """What one leaves when its part is durable."""
    return json.dumps({**written._asdict(), "outline": outline}).encode()


def part_failure(text: str) -> bytes:
    """What it leaves when there will be no part of it."""
    return json.dumps({"failure": text}).encode()


def wait_for_parts(
    part: WriteAssignment, read: Callable[[int], bytes | None]
) -> dict[str, FileDigest]:
    """Waits for the other parts, of which `read` gives the record if there is one.

    Returns their files by name, in the order of the writers, whoever was done first. Raises
    PartsMissingError, SnapshotError, and what `read` raises.
    """
    found: dict[int, FileDigest] = {}
    end, pause = time.monotonic() + PATIENCE, PAUSES[0]
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
                f"Another rank has not written its part of a snapshot within {PATIENCE:.0f} s. "
                "Every rank must call save() with the same steps."
            )
        time.sleep(pause)
        pause = min(2 * pause, PAUSES[1])


def _judge(raw: bytes, outline: str) -> FileDigest:
    told = json.loads(raw)
    if "failure" in told:
        raise SnapshotError(f"Another rank could not write its part: {told['failure']}")
    if told["outline"] != outline:
        raise SnapshotError(
            "The model or the optimizer of another rank has other tensors than those of the first "
            "one: what is not the same on every rank cannot be saved by all of them together. Save "
            "with Snapshots(share=False)."
        )
    return FileDigest(told["size"], told["kind"], told["digest"])
