"""Torchruns join a rendezvous one after another, so each reads and writes its state once.

Each torchrun reads the state of all, adds itself and writes it back, if no other one has written
meanwhile. If all do so at once, most of the writes fail, and the state is read again each time.

May not: know the store.
"""

from __future__ import annotations

import asyncio
from collections import deque

LEASE_SECONDS = 0.5  # from the answer to a torchrun until its write, at most


class JoinQueue:
    """The torchruns that wait for the state of one rendezvous."""

    def __init__(self) -> None:
        self._holder = ""  # worker that has read the state, and may write it
        self._lease: asyncio.TimerHandle | None = None
        self._waiting: deque[tuple[str, asyncio.Future[None]]] = deque()

    async def turn(self, worker: str) -> None:
        """Wait until no other worker is between its read and its write."""
        if self._holder in ("", worker):
            self._hold(worker)
            return
        turn = (worker, asyncio.get_running_loop().create_future())
        self._waiting.append(turn)
        try:
            await turn[1]
        except asyncio.CancelledError:
            if turn in self._waiting:
                self._waiting.remove(turn)
            else:
                self.end(worker)
            raise

    def end(self, worker: str) -> None:
        """Give the next worker its turn."""
        if worker != self._holder:
            return
        if self._lease:
            self._lease.cancel()
        self._holder = ""
        while self._waiting:
            following, turn = self._waiting.popleft()
            if not turn.done():  # not cancelled
                self._hold(following)
                turn.set_result(None)
                return

    def _hold(self, worker: str) -> None:
        if self._lease:
            self._lease.cancel()
        self._holder = worker
        loop = asyncio.get_running_loop()
        self._lease = loop.call_later(LEASE_SECONDS, self.end, worker)
