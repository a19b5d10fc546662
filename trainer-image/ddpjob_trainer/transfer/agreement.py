"""Agreement of a new group on its state: ranks with the newest state send it to the others.

Each rank writes the version of its state to the store, and reads the versions of all ranks. While a
rank has the newest state, the disk is not used. `broadcast` transfers the state.
May not: know of agents, files or models.
"""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any, NamedTuple

from ddpjob_protocol.messages.membership import MembershipId
from ddpjob_trainer.transfer.broadcast import StateSender, receive_state

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch import distributed

    from ddpjob_trainer.transfer.broadcast import ChooseMemory

BEGINNING = MembershipId(0, 0, 0)  # of an untrained state or of a snapshot


class StateVersion(NamedTuple):
    """The version of a state.

    States of two memberships after equal steps differ, as their sums were formed differently.
    """

    step: int  # steps done
    membership: MembershipId  # that did the last step


@dataclasses.dataclass(frozen=True)
class Agreement:
    """The state of each rank in the new group; None: no state."""

    states: tuple[StateVersion | None, ...]

    @property
    def newest(self) -> StateVersion | None:
        """The state from which all ranks resume."""
        return max((state for state in self.states if state is not None), default=None)

    @property
    def holders(self) -> list[int]:
        """Ranks that have the newest state."""
        newest = self.newest
        return [r for r, state in enumerate(self.states) if state is not None and state == newest]

    def deliveries(self) -> list[tuple[int, int]]:
        """Return pairs of source and target rank; the sources alternate."""
        holders = self.holders
        needy = [rank for rank in range(len(self.states)) if rank not in holders]
        return [(holders[i % len(holders)], rank) for i, rank in enumerate(needy)]

    def part_of(self, rank: int) -> tuple[int | None, list[int]]:
        """Return the source of this rank, or None, and its targets."""
        deliveries = self.deliveries()
        source = next((source for source, target in deliveries if target == rank), None)
        return source, [target for source, target in deliveries if source == rank]


def agree(
    store: distributed.Store, rank: int, world_size: int, state: StateVersion | None
) -> Agreement:
    """Exchange versions with all ranks; return when every rank has written its version."""
    store.set(f"member/{rank}", json.dumps(state and (state.step, str(state.membership))))
    keys = [f"member/{each}" for each in range(world_size)]
    return Agreement(tuple(_state(value) for value in store.multi_get(keys)))


def _state(value: bytes) -> StateVersion | None:
    found = json.loads(value)
    return found and StateVersion(found[0], MembershipId.parse(found[1]))


def exchange(
    agreement: Agreement,
    rank: int,
    device: torch.device,
    collect: Callable[[], Any],
    choose: ChooseMemory | None = None,
) -> Any:
    """Send or receive the newest state; return a received one, or None if this rank has it.

    `choose` returns memory for tensors to receive. Raise RuntimeError if the received state is not
    whole, or if the group breaks, and the exceptions of `choose`.
    """
    source, targets = agreement.part_of(rank)
    if targets:
        sender = StateSender(targets, device)
        sender.send_state(collect())
        sender.end()
    if source is None:
        return None
    received = receive_state(source, device, choose)
    if received is None:
        raise RuntimeError(
            f"the state that rank {source} sent to rank {rank} cannot be restored: it has a value of an "
            "unknown kind. Run the same version of ddpjob_trainer on all workers."
        )
    return received
