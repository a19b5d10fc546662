"""The watches of an API server in memory, and their interruptions."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping

from ddpjob_operator.kube.interface import ApiError, UnreachableError
from support.fake_objects import JSON, Change, Objects, Resource, copy_of, matches


class Watches:
    """Sends every change of the objects to the open watches."""

    def __init__(self, objects: Objects) -> None:
        self.objects = objects
        self.lose_event: Callable[[JSON], bool] = lambda event: False
        self.gone_as_event = False  # 410: else the watch is refused, as both happen
        self._forgotten = objects.revision
        self._waiting: list[asyncio.Future[None]] = []
        self._breaks: list[Exception | None] = []
        self._bookmarks = 0
        self._held = False

    def break_watches(self, error: Exception | None = None) -> None:
        """End all watches, as the server does, or with an error."""
        self._breaks.append(error)
        self.tell()

    def hold_watches(self) -> None:
        """Let nothing through, as a dead connection."""
        self._held = True

    def release_watches(self) -> None:
        """Let all through that was held."""
        self._held = False
        self.tell()

    def send_bookmarks(self) -> None:
        """Send the current revision to all watches."""
        self._bookmarks += 1
        self.tell()

    def compact(self) -> None:
        """Forget the history."""
        self._forgotten = self.objects.revision

    def tell(self) -> None:
        """Wake the watches."""
        for news in self._waiting:
            _wake(news)

    async def open(
        self, resource: Resource, namespace: str | None, query: Mapping[str, str], silence: float
    ) -> AsyncIterator[JSON]:
        """One watch."""
        selector = query.get("labelSelector", "")
        since = int(query.get("resourceVersion") or 0)
        if not since:
            since = self.objects.revision
            for obj in self.objects.all(resource, namespace, selector):
                yield {"type": "ADDED", "object": copy_of(obj)}
        elif since < self._forgotten:
            yield self._gone(since)
            return
        time = asyncio.get_running_loop().time
        opened, breaks, bookmarks = time(), len(self._breaks), self._bookmarks
        heard, ends = opened, opened + float(query.get("timeoutSeconds", "inf"))
        while True:
            while not self._held and (changes := self.objects.changes(since)):
                since += len(changes)
                events = _events(changes, resource, namespace, selector)
                for event in itertools.filterfalse(self.lose_event, events):
                    yield event
                    heard = time()
            if not self._held:
                if self._bookmarks > bookmarks and "allowWatchBookmarks" in query:
                    yield _bookmark(resource, since)
                    heard = time()
                bookmarks = self._bookmarks
                if len(self._breaks) > breaks or time() >= ends:
                    break
            if time() >= heard + silence:
                raise UnreachableError(f"nothing came within {silence:g} s")
            if since == self.objects.revision or self._held:
                await self._wait(heard + silence if self._held else min(ends, heard + silence))
        if len(self._breaks) > breaks and (error := self._breaks[-1]):
            raise error

    async def _wait(self, until: float) -> None:
        """Until there is news, or that time."""
        loop = asyncio.get_running_loop()
        news: asyncio.Future[None] = loop.create_future()
        timer = loop.call_at(until, _wake, news) if until < math.inf else None
        self._waiting.append(news)
        try:
            await news
        finally:
            self._waiting.remove(news)
            if timer:
                timer.cancel()

    def _gone(self, since: int) -> JSON:
        gone = ApiError(410, "Expired", f"too old resource version: {since}")
        if not self.gone_as_event:
            raise gone
        status = {"kind": "Status", "code": 410, "reason": gone.reason, "message": gone.message}
        return {"type": "ERROR", "object": status}


def _wake(news: asyncio.Future[None]) -> None:
    if not news.done():
        news.set_result(None)


def _bookmark(resource: Resource, revision: int) -> JSON:
    metadata = {"resourceVersion": str(revision), "creationTimestamp": None}
    obj = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": metadata}
    return {"type": "BOOKMARK", "object": obj}


def _events(
    changes: Iterable[Change], resource: Resource, namespace: str | None, selector: str
) -> Iterator[JSON]:
    """Yield the events of a selection's watch: an object that leaves the selection is deleted."""
    for change in changes:
        here = namespace in (None, change.after["metadata"]["namespace"])
        if change.resource == resource and here:
            before = change.before is not None and matches(selector, change.before)
            after = not change.deleted and matches(selector, change.after)
            if before or after:
                kind = "MODIFIED" if before and after else "ADDED" if after else "DELETED"
                yield {"type": kind, "object": copy_of(change.after)}
