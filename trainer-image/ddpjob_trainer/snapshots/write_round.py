"""The agreement of ranks that write one snapshot together: readiness, and one part for each rank.

Each rank of the group takes part at each save. Ranks with one storage get equal results.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, NamedTuple

from ddpjob_trainer import collectives
from ddpjob_trainer.snapshots.model.write_plan import WriteAssignment, divide

if TYPE_CHECKING:
    from collections.abc import Callable

    from ddpjob_trainer.collectives import StorageGroup
    from ddpjob_trainer.snapshots.model.staging import StagedState


class WriteRound(NamedTuple):
    """One rank's readiness for a snapshot; the values of the storage's first rank hold for all."""

    is_free: bool
    fence: int  # number of the first rank's fence; 0 on other ranks
    attempt_id: str


def agree_on_write(seers: StorageGroup, *, is_free: bool, fence: int) -> WriteRound | None:
    """Return the agreed round; None if a rank is busy. Raise RuntimeError if the group breaks."""
    told = collectives.all_gather_objects(WriteRound(is_free, fence, secrets.token_hex(4)))
    mine = [told[rank] for rank in seers.ranks]
    return mine[0] if all(each.is_free for each in mine) else None


def assign_part(
    content: StagedState,
    still: set[int],
    seers: StorageGroup,
    rank: int,
    agreed: WriteRound,
    over: Callable[[], bool],
) -> WriteAssignment | None:
    """Reduce `content` to this rank's part and return the part; None if there is none."""
    sizes = content.sizes(still)
    division = divide(sizes, len(seers.ranks))
    number = seers.ranks.index(rank)
    if number >= len(division):
        return None
    outlines = tuple(map(content.outline, division))
    if number == 0:
        content.exclude({*sizes} - division[0])
    else:
        content.select(division[number])
    return WriteAssignment(number, len(division), agreed.attempt_id, agreed.fence, outlines, over)
