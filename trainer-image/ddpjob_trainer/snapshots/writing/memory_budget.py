"""A plan for a snapshot within the memory limit: pure.

A save during training takes a copy of the state. The formula is in docs/snapshot-format.md.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ddpjob_trainer.host_memory import MemoryHeadroom

SPARE = 16  # one part in this many of the limit stays free for training


class MemoryPlan(NamedTuple):
    """The way to save snapshots of one size."""

    copies: bool  # copy into memory first, so that training continues during the write
    problem: str = ""  # shortage, its effect and its remedy; empty if memory suffices


def plan_memory(size: int, room: MemoryHeadroom | None, copied: int) -> MemoryPlan:
    """Return the plan for a process that writes `size` bytes per snapshot.

    `copied` is the number of bytes already allocated for the copy.
    """
    if room is None:
        return MemoryPlan(copies=True)
    have = room.free - room.limit // SPARE + copied
    if have >= size:
        return MemoryPlan(copies=True)
    more = math.ceil((size - have) * SPARE / (SPARE - 1) / 1e6)
    return MemoryPlan(
        copies=False,
        problem=f"The {room.what} of {_mb(room.limit)} leaves {_mb(max(have, 0))} for snapshots of "
        f"{_mb(size)} each: training pauses while one is written; a limit that is {more:,} MB "
        "higher is enough",
    )


def _mb(size: int) -> str:
    return f"{size / 1e6:,.0f} MB"
