"""A store of one kind of object, kept in step with the API server.

Theory of operation. A list returns the existing objects, a watch returns later changes. Both follow
the cluster's revisions, and a resource version can be read as a revision. The store therefore holds
every change up to the revision `_known`.
- A list is the truth. The store removes an object that the list lacks and reports the removal,
  because an interrupted watch may have missed a deletion. If its pages expire, the list restarts.
- A watch resumes at `_known`. A quiet watch ends within a minute, which proves that it works. A
  watch that is silent for longer is dead. If no answer arrives, the store opens the watch again.
  If the server rejects the watch permanently or repeatedly, the store lists all objects again.
- The operator puts the result of its own request into the store before the watch returns it.
  The store ignores a result older than `_known`: the object is already stored or deleted. During
  a list, such a result may be newer than the list.
- Absence from the store proves nothing: a watch may be late. Before the operator acts on an absence,
  it reads the object itself, and the store learns what was read.
The store reports every change once, whatever its source.

May not: depend on the kind of object, decide anything, or end because of a failure.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any, Generic

from ddpjob_operator.kube.interface import ApiError, ApiServer, UnreachableError, pages
from ddpjob_operator.kube.object_store import Key, ObjectStore, T

PAGE = "500"
WATCH_SECONDS = 60
SILENCE_SECONDS = 70.0  # longer than a watch, whose end sends bytes
RELIST_SECONDS = 600.0
FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 30.0
OUTAGE_PAUSE_SECONDS = 5.0  # changes arrive as soon after an outage
TOO_SHORT_SECONDS = 1.0  # a watch that ends sooner without an event has failed
GONE = 410
FEW = 3  # rejections in a row before the store lists all objects again
MOST_LOGGED = 100  # distinct messages remembered, to log each once

log = logging.getLogger(__name__)


class _BriefWatchError(UnreachableError):
    """The API server answers, and ends the watch at once."""


class Reflector(Generic[T]):
    """A store of the objects that match a path and a label selector."""

    def __init__(
        self,
        kube: ApiServer,
        path: str,
        selector: str,
        trim: Callable[[dict[str, Any]], T],
        on_change: Callable[[T], None],
        *,
        relist_seconds: float = RELIST_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.synced = asyncio.Event()  # the first list is complete
        self.failures = 0
        self.error: str | None = None  # the present failure, for people
        self._kube = kube
        self.path = path
        self._query = {"labelSelector": selector} if selector else {}
        self._trim = trim
        self._on_change = on_change
        self._relist_seconds = relist_seconds
        self._clock = clock
        self._store: ObjectStore[T] = ObjectStore(self._notify)
        self._known = 0
        self._relist_at: float | None = None  # None: now
        self._put: set[Key] = set()  # objects put during the present list
        self._seen = clock()
        self._failed = 0  # failures in a row
        self._gone = False  # one of these failures was 410
        self._logged: set[str] = set()

    def by_job(self, namespace: str, job: str) -> tuple[T, ...]:
        """Return the objects of one job, ordered by name."""
        return self._store.by_job(namespace, job)

    def items(self) -> tuple[T, ...]:
        """Return all objects."""
        return self._store.items()

    def last_seen(self) -> float:
        """Return the clock time at which the API server last sent something."""
        return self._seen

    def put(self, obj: Mapping[str, Any]) -> None:
        """Store the result of a create or delete, unless the store has a newer version."""
        if obj.get("kind") == "Status":
            return
        item = self._trimmed(dict(obj))
        if item is None or int(item.version) <= self._known or not self._store.is_newer(item):
            return
        self._put.add((item.namespace, item.name))
        self._store.set(item)

    def learn(self, obj: Mapping[str, Any]) -> bool:
        """Store an object that was read by itself; return whether that has changed the store.

        The watch has lost it if it is older than `_known`. Its deletion may have come meanwhile.
        """
        item = self._trimmed(dict(obj))
        if item is None or self._store.was_deleted(item) or not self._store.is_newer(item):
            return False
        self._store.set(item)
        return True

    def drop(self, namespace: str, name: str, uid: str) -> bool:
        """Remove an object that does not exist any more; return whether the store had it."""
        return self._store.drop((namespace, name), uid)

    async def run(self) -> None:
        """List and watch until cancelled."""
        while True:
            try:
                if self._relist_at is None or self._clock() >= self._relist_at:
                    await self._list()
                await self._watch()
            except Exception as error:  # noqa: BLE001 - an operator without a watch is worse than any error
                await asyncio.sleep(self._pause_after(error))

    # --- list and watch ---------------------------------------------------------------------------

    async def _list(self) -> None:
        self._put.clear()
        listed: set[Key] = set()
        revision = 0
        async for page in pages(self._kube, self.path, {**self._query, "limit": PAGE}):
            self._seen = self._clock()
            for obj in page["items"] or ():
                listed.add(_key(obj))
                self._replace_all(obj)
            revision = int(page["metadata"]["resourceVersion"])
        self._known = revision
        for item in self._store.items():
            key = item.namespace, item.name
            older = key not in self._put or int(item.version) <= self._known
            if older and key not in listed:
                self._store.remove(key)
        spread = random.uniform(0.9, 1.1)  # noqa: S311 - not a secret
        self._relist_at = self._clock() + self._relist_seconds * spread
        self.error = None
        self.synced.set()

    def _replace_all(self, obj: dict[str, Any]) -> None:
        """Store an object from a list, unless a newer version was put meanwhile."""
        item = self._trimmed(obj)
        if item is None:
            return
        old = self._store.get(_key(obj))
        same = old is not None and (old.uid, old.version) == (item.uid, item.version)
        if not same and (_key(obj) not in self._put or self._store.is_newer(item)):
            self._store.set(item)

    async def _watch(self) -> None:
        opened = self._clock()
        query = {
            **self._query,
            "resourceVersion": str(self._known),
            "allowWatchBookmarks": "true",
            # Random, to spread the ends of the watches.
            "timeoutSeconds": str(random.randint(WATCH_SECONDS * 3 // 4, WATCH_SECONDS)),  # noqa: S311
        }
        events = self._kube.watch(self.path, query=query, silence=SILENCE_SECONDS)
        received = False
        try:
            async for event in events:
                self._apply(event)
                self._reset_backoff()
                received = True
        finally:
            if isinstance(events, AsyncGenerator):
                await events.aclose()
        if not received and self._clock() - opened < TOO_SHORT_SECONDS:
            raise _BriefWatchError("the watch ends as soon as it is opened")
        self._reset_backoff()

    def _apply(self, event: dict[str, Any]) -> None:
        kind, obj = event["type"], event["object"]
        if kind == "ERROR":
            raise ApiError(obj.get("code", 500), obj.get("reason", ""), obj.get("message", ""))
        revision = int(obj["metadata"]["resourceVersion"])
        if kind in ("ADDED", "MODIFIED"):
            item = self._trimmed(obj)
            if item is not None and self._store.is_newer(item):
                self._store.set(item)
        elif kind == "DELETED":
            self._store.drop(_key(obj), obj["metadata"]["uid"])
        self._known = revision

    def _notify(self, item: T) -> None:
        try:
            self._on_change(item)
        except Exception as error:  # noqa: BLE001 - one failure must not stop the list
            self._count(f"cannot report {item.namespace}/{item.name}: {error!r}")

    def _trimmed(self, obj: dict[str, Any]) -> T | None:
        """Return None for an unreadable object, which must not keep the others out."""
        try:
            return self._trim(obj)
        except Exception as error:  # noqa: BLE001 - a foreign object may raise any error
            self._count(f"cannot read {obj.get('metadata', {}).get('name')}: {error!r}")
            return None

    # --- health -----------------------------------------------------------------------------------

    def _reset_backoff(self) -> None:
        self._seen = self._clock()
        self.error = None
        if self._failed:
            self._failed, self._gone = 0, False
            self._logged.clear()
            log.info("%s: watch resumed", self.path)

    def _pause_after(self, error: Exception) -> float:
        """Record a failure and return the seconds to wait, which grow with each failure."""
        self._failed += 1
        if not _is_transient(error) or (self._failed > FEW and isinstance(error, ApiError)):
            self._relist_at = None
        gone = isinstance(error, ApiError) and error.status == GONE
        if gone and not self._gone:
            self._gone = True
            return 0.0  # no fault: a watch without events for long expires
        self.error = str(error) or repr(error)
        self._count(self.error)
        outage = isinstance(error, UnreachableError) and not isinstance(error, _BriefWatchError)
        longest = OUTAGE_PAUSE_SECONDS if outage else LONGEST_PAUSE_SECONDS
        pause = min(longest, FIRST_PAUSE_SECONDS * 2.0 ** min(self._failed - 1, 10))
        asked = error.retry_after if isinstance(error, ApiError) else None
        jitter = random.uniform(0.5, 1.0)  # noqa: S311 - not a secret
        return max(pause * jitter, min(asked or 0.0, LONGEST_PAUSE_SECONDS))

    def _count(self, message: str) -> None:
        self.failures += 1
        if message not in self._logged:
            if len(self._logged) > MOST_LOGGED:
                self._logged.clear()
            self._logged.add(message)
            log.warning("%s: %s", self.path, message)


def _is_transient(error: Exception) -> bool:
    """Return whether the watch can resume at `_known` after this failure."""
    if isinstance(error, ApiError):
        return error.status == 429 or error.status >= 500
    return isinstance(error, UnreachableError)


def _key(obj: dict[str, Any]) -> Key:
    metadata = obj["metadata"]
    return metadata.get("namespace", ""), metadata["name"]
