"""Which keys are to be worked on, and when: merges, keeps apart, postpones.

Theory of operation. A key is in any of four places:
- ready: to be handed out, first come, first served. Adding it again changes nothing.
- running: handed out and not yet done. Nobody else gets it; added meanwhile, it becomes ready
  again when it is done, because its worker may have looked before the change.
- postponed: becomes ready at a time; of several times the earliest counts. An addition before
  then does not cancel it: whoever works on the key sooner may fail, or may not know why it was
  postponed. At worst that is one look too many.
- failed: how often it was retried in a row, until it is forgotten. No place to wait in.

May not: know what keys are, or who works on them.
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
    """Keys for any number of workers: `get`, work, `retry` or `forget`, `done`."""

    def __init__(
        self,
        *,
        first_retry: float = 1.0,
        longest_retry: float = 60.0,
        time: Callable[[], float] = time.monotonic,  # the running loop's, or what goes as fast
    ) -> None:
        self._first_retry = first_retry
        self._longest_retry = longest_retry
        self._time = time
        self._ready: dict[K, float] = {}  # since when
        self._running: dict[K, float] = {}  # since when
        self._again: dict[K, float] = {}  # running, and added since then
        self._postponed: dict[K, float] = {}  # until when
        self._schedule: list[tuple[float, int, K]] = []  # may hold what was moved to sooner
        self._order = itertools.count()
        self._retries: Counter[K] = Counter()
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        """How many keys are due and not being worked on."""
        self._promote()
        return len(self._ready) + len(self._again)

    def add(self, key: K) -> None:
        """The key is to be worked on, from what is known now."""
        self._make_ready(key, self._time())

    def add_after(self, key: K, seconds: float) -> None:
        """The same in so many seconds, or earlier if that was asked for before."""
        due = self._time() + seconds
        if due < self._postponed.get(key, float("inf")):
            self._postponed[key] = due
            heapq.heappush(self._schedule, (due, next(self._order), key))
            self._changed.set()

    def retry(self, key: K) -> float:
        """The same after a pause that doubles with each retry; returns the pause in seconds."""
        doublings = min(self._retries[key], 30)  # of a long failure, the power has no end
        self._retries[key] += 1
        pause = min(self._longest_retry, self._first_retry * 2.0**doublings)
        self.add_after(key, pause)
        return pause

    def forget(self, key: K) -> None:
        """The key was worked on with success: the next retry comes soon again."""
        del self._retries[key]

    async def get(self) -> K:
        """Wait for the next key; it is the caller's until `done`."""
        while True:
            self._promote()
            if self._ready:
                key = next(iter(self._ready))
                del self._ready[key]
                self._running[key] = self._time()
                return key
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._until_next()):
                    await self._changed.wait()

    def done(self, key: K) -> None:
        """The caller has finished with a key from `get`, well or badly."""
        del self._running[key]
        if key in self._again:
            self._make_ready(key, self._again.pop(key))

    def oldest_waiting(self) -> float:
        """Seconds that a key has been due or running at most: the sign of a worker that hangs."""
        self._promote()
        since = [*self._ready.values(), *self._running.values()]  # _again is younger than _running
        return self._time() - min(since) if since else 0.0

    def _make_ready(self, key: K, since: float) -> None:
        if key in self._running:
            self._again.setdefault(key, since)
        elif key not in self._ready:
            self._ready[key] = since
            self._changed.set()

    def _promote(self) -> None:
        """Make ready what was postponed until now."""
        while self._schedule and self._schedule[0][0] <= self._time():
            due, _, key = heapq.heappop(self._schedule)
            if self._postponed.get(key) == due:
                del self._postponed[key]
                self._make_ready(key, due)

    def _until_next(self) -> float | None:
        return self._schedule[0][0] - self._time() if self._schedule else None
