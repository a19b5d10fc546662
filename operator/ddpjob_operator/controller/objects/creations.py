"""Creates the objects of a job: of each kind one first, then twice as many while that succeeds.

After a rejection, the rest of the kind is not tried, and the next attempt follows after a pause,
which doubles. Passes in between get the same rejection without a request. So a job of many workers
behind an exhausted quota sends few requests. A change of the job's spec ends its pauses.
May not: decide which objects a job needs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import NamedTuple

from ddpjob_operator.api.constants import Reason
from ddpjob_operator.planner.observed import Rejection
from ddpjob_operator.rendezvous.session_pool import Key

FIRST_PAUSE_SECONDS = 1.0
MAX_PAUSE_SECONDS = 60.0
AT_ONCE = 8  # requests of one job at the same time

Send = Callable[[], Awaitable[Rejection | None]]


class Creation(NamedTuple):
    """An object to create; `send` returns a rejection if the API server did not create it."""

    name: str
    send: Send


class _Pause(NamedTuple):
    rejection: Rejection
    generation: int  # of the job
    seconds: float
    until: float


class Creations:
    """The creations of all jobs, with the pauses after rejections."""

    def __init__(self, clock: Callable[[], float], at_once: int = AT_ONCE) -> None:
        """`at_once`: requests of one job at the same time."""
        self._clock = clock
        self._at_once = at_once
        self._pauses: dict[Key, dict[str, _Pause]] = {}

    async def create(
        self, key: Key, generation: int, kind: str, creations: Sequence[Creation]
    ) -> list[Rejection]:
        """Create the objects of one kind; return a rejection for each object not created."""
        pauses = self._pauses.setdefault(key, {})
        pause = pauses.get(kind)
        if pause is not None and pause.generation != generation:
            pause = None
        if pause is not None and self._clock() < pause.until:
            return [_for(pause.rejection, each) for each in creations]
        rejections, lasting = await self._create_in_growing_batches(creations)
        if lasting is None:
            pauses.pop(kind, None)
        else:
            before = pause.seconds if pause else 0.0
            seconds = min(max(2 * before, FIRST_PAUSE_SECONDS), MAX_PAUSE_SECONDS)
            pauses[kind] = _Pause(lasting, generation, seconds, self._clock() + seconds)
        return rejections

    def seconds_left(self, key: Key) -> float | None:
        """Return the seconds until the next pause of a job is over; None without a pause."""
        left = (each.until - self._clock() for each in self._pauses.get(key, {}).values())
        return min((seconds for seconds in left if seconds > 0), default=None)

    def forget(self, key: Key) -> None:
        """Drop the pauses of a job that no longer exists."""
        self._pauses.pop(key, None)

    async def send_at_once(self, sends: Iterable[Send]) -> list[Rejection]:
        """Send requests, a few at a time; return the rejections."""
        limit = asyncio.Semaphore(self._at_once)

        async def send_one(send: Send) -> Rejection | None:
            async with limit:
                return await send()

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(send_one(each)) for each in sends]
        return [found for task in tasks if (found := task.result()) is not None]

    async def _create_in_growing_batches(
        self,
        creations: Sequence[Creation],
    ) -> tuple[list[Rejection], Rejection | None]:
        """Return all rejections, and the first one that holds for the rest of the kind, if any."""
        rejections: list[Rejection] = []
        begin, size = 0, 1
        while begin < len(creations):
            batch = creations[begin : begin + size]
            rejections += await self.send_at_once(each.send for each in batch)
            begin, size = begin + size, 2 * size
            lasting = next(filter(_holds_for_all, rejections), None)
            if lasting is not None:
                return rejections + [_for(lasting, each) for each in creations[begin:]], lasting
        return rejections, None


def _holds_for_all(rejection: Rejection) -> bool:
    """Return whether the API server would reject other objects of the kind, too."""
    return rejection.reason is not Reason.NAME_TAKEN


def _for(rejection: Rejection, creation: Creation) -> Rejection:
    return Rejection(creation.name, rejection.reason, rejection.message)
