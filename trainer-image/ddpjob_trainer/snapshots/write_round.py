"""The ranks that write one snapshot together: whether all can now, and who writes what.

Every rank of the group asks, at every save; the answer is the same on those that see one place.
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
    """What a rank says when a snapshot is due; that of the first one holds for all."""

    is_free: bool
    fence: int  # its number; 0: not the first one's
    attempt_id: str


def agree_on_write(seers: StorageGroup, *, is_free: bool, fence: int) -> WriteRound | None:
    """None if somebody is not free. Raises RuntimeError if the group breaks."""
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
    """This rank's part, which is all that `content` holds then; None: there is none for it."""
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
