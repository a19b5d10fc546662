"""The ranks that torchrun assigns, read from what each torchrun writes into the c10d store.

torchrun orders the workers itself: its rendezvous sorts them by address and process id. Then each
torchrun writes its place in this order and its number of processes, and all derive the ranks.
Nothing is known if a torchrun uses another store, or if TORCH_ELASTIC_WORKER_IDENTICAL is set.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, NamedTuple

from ddpjob_protocol.messages.control import WorkerRanks
from ddpjob_protocol.parsers.checks import count_to

if TYPE_CHECKING:
    from collections.abc import Iterable

# The number is that of torchrun's rendezvous round. Before torch 2.4, no slash precedes the rank.
_KEY = re.compile(
    rb"torch\.rendezvous\..{0,999}\.([0-9]{1,9})/torchelastic/role_info/?[0-9]{1,9}", re.DOTALL
)
_MAX_BYTES = 2000  # of a key, and of a value
_MAX_RANK = 2**20


class _Place(NamedTuple):
    """The place of one torchrun among all."""

    round: int
    rank: int
    processes: int


class TorchrunRanks:
    """The ranks in one store; each torchrun writes a place in each of its rounds."""

    def __init__(self) -> None:
        self._places: dict[str, _Place] = {}  # by worker

    def observe(self, worker: str, key: bytes, value: bytes | None) -> None:
        """Record the place of this worker if the entry contains one."""
        if value is None or max(len(key), len(value)) > _MAX_BYTES:
            return
        match = _KEY.search(key)
        if match is None:
            return
        try:
            content = json.loads(value)
            rank = count_to(_MAX_RANK)(content["rank"], "rank")
            processes = count_to(_MAX_RANK)(content["local_world_size"], "local_world_size")
        except (KeyError, RecursionError, TypeError, ValueError):
            return
        place = _Place(int(match[1]), rank, processes)
        known = self._places.get(worker)
        if known is None or place.round >= known.round:
            self._places[worker] = place

    def assigned(self, workers: Iterable[str]) -> tuple[WorkerRanks, ...]:
        """Return these workers in the order of ranks; nothing if the order is not known."""
        places = {worker: self._places.get(worker) for worker in workers}
        found = sorted((place, worker) for worker, place in places.items() if place is not None)
        complete = len(found) == len(places) and len({place.round for place, _ in found}) == 1
        if not complete or [place.rank for place, _ in found] != list(range(len(found))):
            return ()
        ranks, first = [], 0
        for place, worker in found:
            ranks.append(WorkerRanks(worker, first, place.processes))
            first += place.processes
        return tuple(ranks)
