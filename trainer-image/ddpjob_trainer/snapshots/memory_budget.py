"""A plan for snapshots within the memory limit: pure.

A save during training takes a copy of the state. A directory in memory holds `keep` snapshots, and
one more during a write. The formula is in docs/snapshot-format.md.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from ddpjob_trainer.errors import SnapshotError

if TYPE_CHECKING:
    from ddpjob_trainer.host_memory import MemoryHeadroom

SPARE = 16  # one part in this many of the limit stays free for training


class MemoryPlan(NamedTuple):
    """The way to save snapshots of one size."""

    copies: bool  # copy into memory first, so that training continues during the write
    keep: int  # snapshots to keep
    problem: str = ""  # shortage, its effect and its remedy; empty if memory suffices


def plan_memory(
    size: int, keep: int, room: MemoryHeadroom | None, *, whole: int, copied: int, held: int | None
) -> MemoryPlan:
    """Return the plan for a process that writes `size` bytes per snapshot and keeps `keep` of them.

    `whole` is the size of a snapshot in bytes, with the parts of other ranks. `copied` is the
    number of bytes already allocated for the copy. `held` is the number of bytes of snapshots in
    memory; None if they are elsewhere. Raise SnapshotError if two snapshots do not fit into a
    directory in memory.
    """
    if room is None:
        return MemoryPlan(copies=True, keep=keep)
    have = room.free - room.limit // SPARE + copied + (held or 0)
    least = 0 if held is None else 2 * whole
    wanted = size if held is None else size + (keep + 1) * whole
    if have >= wanted:
        return MemoryPlan(copies=True, keep=keep)
    short = (
        f"The memory limit of {_mb(room.limit)} leaves {_mb(max(have, 0))} for snapshots of "
        f"{_mb(whole)} each"
    )
    more = math.ceil((wanted - have) * SPARE / (SPARE - 1) / 1e6)
    remedy = f"a limit that is {more:,} MB higher is enough"
    if held is not None and have < least:
        raise SnapshotError(
            f"{short}, and the directory for them lies in memory: it must hold two. Raise the "
            f"limit ({remedy}), or give the job a directory on a disk."
        )
    copies = have >= least + size
    stays = keep if held is None else min(keep, (have - copies * size) // whole - 1)
    less = [] if copies else ["training stands still while one is written"]
    less += [f"{stays} instead of {keep} are kept"] if stays < keep else []
    return MemoryPlan(copies, stays, f"{short}: {', and '.join(less)}; {remedy}")


def _mb(size: int) -> str:
    return f"{size / 1e6:,.0f} MB"
