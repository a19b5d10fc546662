"""How a new group agrees on its state: who has the newest one gives it to who has not.

Each member writes into the store which steps it has done; all read all. Nothing goes over disk
while one of them has the newest state. Values travel as in a snapshot: JSON and tensors.
Knows nothing of agents, files and models.
"""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import distributed

from ddpjob_agent.contract import MembershipId
from ddpjob_trainer import tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PACK_BYTES = 1 << 20  # smaller tensors travel together


BEGINNING = MembershipId(0, 0, 0)  # of a state that no membership has trained, or of a snapshot


class State(NamedTuple):
    """How far a state is. The same step done by two memberships differs: in how sums were formed."""

    step: int  # steps done
    membership: MembershipId  # in which the last of them was


@dataclasses.dataclass(frozen=True)
class Agreement:
    """What each rank of the new group has; None: no state."""

    states: tuple[State | None, ...]

    @property
    def newest(self) -> State | None:
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


def agree(store: distributed.Store, rank: int, world_size: int, state: State | None) -> Agreement:
    """Tell all others and hear from them; returns when the last one has come."""
    store.set(f"member/{rank}", json.dumps(state and (state.step, str(state.membership))))
    keys = [f"member/{each}" for each in range(world_size)]
    return Agreement(tuple(_state(value) for value in store.multi_get(keys)))


def _state(value: bytes) -> State | None:
    found = json.loads(value)
    return found and State(found[0], MembershipId.parse(found[1]))


def give(state: Any, to: int, device: torch.device) -> None:
    """Send a state to another rank."""
    node, tensors = tree.flatten(state)
    shapes = [(name, str(t.dtype)[6:], list(t.shape)) for name, t in tensors.items()]
    head = torch.frombuffer(bytearray(json.dumps([node, shapes]).encode()), dtype=torch.uint8)
    distributed.send(torch.tensor([head.numel()], device=device), to)
    distributed.send(head.to(device), to)
    parts = [_bytes(tensor) for tensor in tensors.values()]
    for first, last in _packs([part.numel() for part in parts]):
        distributed.send(torch.cat(parts[first:last]).to(device), to)


def take(source: int, device: torch.device) -> Any:
    """Inverse of give()."""
    size = torch.zeros(1, dtype=torch.int64, device=device)
    distributed.recv(size, source)
    head = torch.zeros(int(size), dtype=torch.uint8, device=device)
    distributed.recv(head, source)
    node, shapes = json.loads(bytes(head.cpu().numpy()))
    tensors = {name: torch.empty(shape, dtype=getattr(torch, kind)) for name, kind, shape in shapes}
    parts = [_bytes(tensor) for tensor in tensors.values()]
    for first, last in _packs([part.numel() for part in parts]):
        pack = torch.empty(
            sum(part.numel() for part in parts[first:last]), dtype=torch.uint8, device=device
        )
        distributed.recv(pack, source)
        pieces = pack.cpu().split([part.numel() for part in parts[first:last]])
        for part, piece in zip(parts[first:last], pieces, strict=True):
            part.copy_(piece)
    return tree.restore(node, tensors)


def exchange(
    agreement: Agreement, rank: int, device: torch.device, collect: Callable[[], Any]
) -> Any:
    """Bring everybody to the newest state; returns the one to take over, None if there is none."""
    taken = None
    for source, target in agreement.deliveries():
        if rank == source:
            give(collect(), target, device)
        elif rank == target:
            taken = take(source, device)
    return taken


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.resolve_conj().resolve_neg().contiguous().view(-1).view(torch.uint8)


def _packs(sizes: list[int]) -> Iterator[tuple[int, int]]:
    """Ranges of neighbours that travel together: small ones, or a large one alone."""
    first, total = 0, 0
    for i, size in enumerate(sizes):
        if i > first and total + size > PACK_BYTES:
            yield first, i
            first, total = i, 0
        total += size
    if sizes and total:
        yield first, len(sizes)
