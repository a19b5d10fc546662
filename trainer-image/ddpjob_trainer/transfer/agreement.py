"""How a new group agrees on its state: who has the newest one gives it to who has not.

Each member writes into the store which steps it has done; all read all. Nothing goes over disk
while one of them has the newest state. How it travels is `sending`'s business.
Knows nothing of agents, files and models.
"""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any, NamedTuple

from ddpjob_protocol.membership import MembershipId
from ddpjob_trainer.transfer.broadcast import StateSender, receive_state

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch import distributed

BEGINNING = MembershipId(0, 0, 0)  # of a state that no membership has trained, or of a snapshot


class StateVersion(NamedTuple):
    """How far a state is. The same step done by two memberships differs: in how sums were formed."""

    step: int  # steps done
    membership: MembershipId  # in which the last of them was


@dataclasses.dataclass(frozen=True)
class Agreement:
    """What each rank of the new group has; None: no state."""

    states: tuple[StateVersion | None, ...]

    @property
    def newest(self) -> StateVersion | None:
        """The state that all go on with."""
        return max((state for state in self.states if state is not None), default=None)

    @property
    def holders(self) -> list[int]:
        """Ranks that have it."""
        newest = self.newest
        return [r for r, state in enumerate(self.states) if state is not None and state == newest]

    def deliveries(self) -> list[tuple[int, int]]:
        """From which rank to which; givers take turns."""
        holders = self.holders
        needy = [rank for rank in range(len(self.states)) if rank not in holders]
        return [(holders[i % len(holders)], rank) for i, rank in enumerate(needy)]

    def part_of(self, rank: int) -> tuple[int | None, list[int]]:
        """From whom this rank gets it, if it does, and to whom it gives it."""
        deliveries = self.deliveries()
        source = next((source for source, target in deliveries if target == rank), None)
        return source, [target for source, target in deliveries if source == rank]


def agree(
    store: distributed.Store, rank: int, world_size: int, state: StateVersion | None
) -> Agreement:
    """Tell all others and hear from them; returns when the last one has come."""
    store.set(f"member/{rank}", json.dumps(state and (state.step, str(state.membership))))
    keys = [f"member/{each}" for each in range(world_size)]
    return Agreement(tuple(_state(value) for value in store.multi_get(keys)))


def _state(value: bytes) -> StateVersion | None:
    found = json.loads(value)
    return found and StateVersion(found[0], MembershipId.parse(found[1]))


def exchange(
    agreement: Agreement, rank: int, device: torch.device, collect: Callable[[], Any]
) -> Any:
    """Bring everybody to the newest state; returns the one to take over, None if there is none."""
    source, targets = agreement.part_of(rank)
    if targets:
        giver = StateSender(targets, device)
        giver.send_state(collect())
        giver.end()
    return None if source is None else receive_state(source, device)
