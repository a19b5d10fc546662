"""A queue of keys to work on: merges additions, excludes parallel work, postpones.

Theory of operation. A key may be in each of four sets:
- ready: waits for a worker, first in, first out. A second addition changes nothing.
- running: a worker has the key, and no other worker gets it. If the key is added meanwhile, the key
  becomes ready again when done, because the worker may have read the state before the change.
- postponed: becomes ready at a time; the earliest of several times counts. An earlier addition does
  not cancel the time, because the earlier pass may fail or may lack the reason. The cost is at most
  one needless pass.
- failed: number of retries in a row, until `forget`. A count, not a place to wait.

May not: depend on the meaning of keys, or do the work.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import time
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class WorkQueue(Generic[K]):
    """A queue for any number of workers: `get`, work, `retry` or `forget`, `done`."""

    def __init__(
        self,
        *,
        first_retry: float = 1.0,
        longest_retry: float = 60.0,
        time: Callable[[], float] = time.monotonic,  # must advance like the loop's clock
    ) -> None:
        self._first_retry = first_retry
        self._longest_retry = longest_retry
        self._time = time
        self._ready: dict[K, float] = {}  # time of the addition
        self._running: dict[K, float] = {}  # time of `get`
        self._progress: dict[K, float] = {}  # running; time of the last progress
        self._again: dict[K, float] = {}  # running and added again; time of that addition
        self._postponed: dict[K, float] = {}  # time at which the key becomes ready
        self._schedule: list[tuple[float, int, K]] = []  # may hold outdated times
        self._order = itertools.count()
        self._retries: Counter[K] = Counter()
        self._changed = asyncio.Event()
        self._closed = False
        self._idle = asyncio.Event()  # closed, and no key is running

    def __len__(self) -> int:
        """Return the number of due keys without a worker."""
        self._promote()
        return len(self._ready) + len(self._again)

    def add(self, key: K) -> None:
        """Queue a key now."""
        self._make_ready(key, self._time())

    def add_after(self, key: K, seconds: float) -> None:
        """Queue a key after `seconds`, or earlier if an earlier time is set."""
        due = self._time() + seconds
        if due < self._postponed.get(key, float("inf")):
            self._postponed[key] = due
            heapq.heappush(self._schedule, (due, next(self._order), key))
            self._changed.set()

    def retry(self, key: K) -> float:
        """Queue a key after a pause that doubles with each retry; return the pause in seconds."""
        doublings = min(self._retries[key], 30)  # bounds the power below
        self._retries[key] += 1
        pause = min(self._longest_retry, self._first_retry * 2.0**doublings)
        self.add_after(key, pause)
        return pause

    def forget(self, key: K) -> None:
        """Reset the retries of a key after a success."""
        del self._retries[key]

    async def get(self) -> K:
        """Wait for the next key; the caller owns the key until `done`."""
        while True:
            self._promote()
            if self._ready and not self._closed:
                key = next(iter(self._ready))
                del self._ready[key]
                self._running[key] = self._progress[key] = self._time()
                return key
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._until_next()):
                    await self._changed.wait()

    def done(self, key: K) -> None:
        """Release a key from `get`, after success or failure."""
        del self._running[key], self._progress[key]
        if key in self._again:
            self._make_ready(key, self._again.pop(key))
        self._note_idle()

    async def drain(self) -> None:
        """Hand out no more keys, and wait until no key is running."""
        self._closed = True
        self._note_idle()
        await self._idle.wait()

    def _note_idle(self) -> None:
        if self._closed and not self._running:
            self._idle.set()

    def oldest_waiting(self) -> float:
        """Return the longest time in seconds that a key has been due or running."""
        self._promote()
        since = [*self._ready.values(), *self._running.values()]  # _again is younger than _running
        return self._time() - min(since) if since else 0.0

    def renew(self, key: K) -> None:
        """Note progress of the work on a key."""
        if key in self._progress:
            self._progress[key] = self._time()

    def longest_standstill(self) -> float:
        """Return the longest time in seconds without progress.

        A key that waits for slow work on others is not stalled.
        """
        self._promote()
        since = [*(self._progress or self._ready).values()]
        return self._time() - min(since) if since else 0.0

    def _make_ready(self, key: K, since: float) -> None:
        if key in self._running:
            self._again.setdefault(key, since)
        elif key not in self._ready:
            self._ready[key] = since
            self._changed.set()

    def _promote(self) -> None:
        """Move postponed keys that are due to the ready set."""
        while self._schedule and self._schedule[0][0] <= self._time():
            due, _, key = heapq.heappop(self._schedule)
            if self._postponed.get(key) == due:
                del self._postponed[key]
                self._make_ready(key, due)

    def _until_next(self) -> float | None:
        waits = self._schedule and not self._closed
        return self._schedule[0][0] - self._time() if waits else None
