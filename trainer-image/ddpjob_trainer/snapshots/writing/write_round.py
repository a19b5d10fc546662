"""The agreement of ranks that write one snapshot together: readiness, and one part for each rank.

Each rank of the group takes part at each save. Ranks with one storage get equal results.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, NamedTuple

from ddpjob_trainer import collectives
from ddpjob_trainer.errors import SnapshotError
from ddpjob_trainer.snapshots.model.write_plan import ALONE, WriteAssignment, divide

if TYPE_CHECKING:
    from collections.abc import Callable

    from ddpjob_trainer.collectives import StorageGroup
    from ddpjob_trainer.snapshots.model.fencing import Fence
    from ddpjob_trainer.snapshots.model.flat_state import FlatState


class WriteRound(NamedTuple):
    """One rank's readiness for a snapshot; the values of the storage's first rank hold for all."""

    is_free: bool
    fence: int  # number of the first rank's fence; 0 on other ranks
    attempt_id: str  # empty if the first rank of a storage writes alone


SOLO = WriteRound(is_free=True, fence=0, attempt_id="")


def agree_on_write(
    storage_group: StorageGroup, take_fence: Callable[[], Fence] | None, *, is_free: bool
) -> WriteRound | None:
    """Return the agreed round; None if a rank is busy. Raise RuntimeError if the group breaks.

    Only the first rank of a storage has `take_fence`. If that fails, this rank saves alone, and the
    save reports why.
    """
    number, is_hindered = 0, False
    if take_fence is not None and is_free:
        try:
            number = take_fence().number
        except (SnapshotError, OSError):
            is_hindered = True
    mine = WriteRound(is_free and not is_hindered, number, secrets.token_hex(4))
    gathered = collectives.all_gather_objects(mine)
    rounds = [gathered[rank] for rank in storage_group.ranks]
    if is_hindered:
        return SOLO
    return rounds[0] if all(each.is_free for each in rounds) else None


def assign_part(
    state: FlatState,
    still: set[int],
    storage_group: StorageGroup,
    rank: int,
    agreed: WriteRound,
    over: Callable[[], bool],
) -> WriteAssignment | None:
    """Return this rank's part of the state; None if there is none."""
    if not agreed.attempt_id:
        return ALONE
    shared = {name: tensor.nbytes for name, tensor in state.inside(still).items()}
    division = divide(shared, len(storage_group.ranks))
    number = storage_group.ranks.index(rank)
    if number >= len(division):
        return None
    names = division[number]
    if number == 0:
        names |= state.tensors.keys() - shared.keys()
    outlines = tuple(map(state.outline, division))
    return WriteAssignment(
        number, len(division), agreed.attempt_id, agreed.fence, outlines, over, names
    )
