"""What of saving fits into the memory that there is: pure.

Saving while training goes on takes a copy of the state. A directory in memory holds `keep`
snapshots, and one more while it is written. The formula is in docs/snapshot-format.md.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from ddpjob_trainer.errors import SnapshotError

if TYPE_CHECKING:
    from ddpjob_trainer.host_memory import MemoryHeadroom

SPARE = 16  # this part of the limit is left to training


class MemoryPlan(NamedTuple):
    """How snapshots of one size are saved."""

    copies: bool  # into memory first, so that training goes on while one is written
    keep: int  # so many are kept
    problem: str = ""  # than what was wanted, and what to do; empty if nothing is


def plan_memory(
    size: int, keep: int, room: MemoryHeadroom | None, *, whole: int, copied: int, held: int | None
) -> MemoryPlan:
    """For a process that writes so many bytes of each snapshot, of which `keep` are wanted.

    `whole`: bytes of a snapshot, with what others write. `copied`: bytes that are taken for the
    copy already. `held`: bytes that snapshots take in memory, None where they lie elsewhere.
    Raises SnapshotError where not even one fits beside the one that is written.
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
