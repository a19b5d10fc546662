"""Keeps the files that an unchanged script saves its state to: the agent's side of `files`.

    nothing runs ──► tell what is there ──► put in place what the service names ──► go
    go           ──► look at the files again and again; whenever they are whole and quiet, copy them
                     and tell; get what another worker has copied, when asked to

A thread does what blocks on the disk. Follows the newest word of the service only; a full disk is
told of, and ends nothing.
May not: start or end processes, or decide which copy counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import functools
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Callable, TypeVar

from .copies import Stock, Word
from .exchange import Exchange, NotGivenError, fetch
from .tracked import ChangedError
from .wire import RefusedError, WireError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .contract import Membership, Message
    from .copies import Part
    from .holdings import Holdings
    from .tracked import Seen

LOOK_SECONDS = 0.2  # between two looks at the files
# Unchanged for so long they are not being written to. A writer of several files, or one whose disk
# or network makes it pause, takes longer between two writes than one look; of a format that shows
# its end this need not be long.
QUIET_SECONDS = 1.0
STALE_SECONDS = 10.0  # not whole, and unchanged for so long: nobody is writing it
RETRY_SECONDS = 0.5
GET_SECONDS = 120.0  # to reach somebody who has the copy that all begin from
FAREWELL_SECONDS = 2.0  # for the service to answer that this worker goes

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM)

T = TypeVar("T")

log = logging.getLogger("ddpjob.files")


class _HereError(Exception):
    """What is offered is in place already."""


class Keeper:
    """Of one worker; does nothing before `listen`. `changed`: `may_start` may have become true."""

    def __init__(
        self,
        holdings: Holdings,
        token: str,
        send: Callable[[Message], None],
        changed: Callable[[], None],
    ) -> None:
        self._holdings = holdings
        self._token = token
        self._send = send
        self._changed = changed
        self._exchange = Exchange(token, holdings.find, self._lose)
        self._following: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._disk = ThreadPoolExecutor(1, "files")
        self._stock = Stock("")
        self._word: Word | None = None
        self._members: tuple[str, ...] = ()
        self._news = asyncio.Event()
        self._entered = ""  # the scope whose copy has become that membership's
        self._is_idle = True  # no process of the script runs
        self._ran, self._began = "", 0.0  # the membership that ran last, and since when
        self._last: tuple[tuple[Seen, ...], float] = ((), 0.0)  # as seen last, and since when
        self._watching: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()
        self._is_writing = False
        self._damaged: tuple[Seen, ...] = ()  # as they were when they were not whole
        self.obstacle = ""  # why what all begin from cannot be put in place here

    async def listen(self, address: str) -> None:
        """Give copies to others from now on, and follow the service's words."""
        await self._exchange.listen(address)
        self._following = asyncio.ensure_future(self._follow())

    def close(self) -> None:
        """Do nothing more."""
        if self._following is None:
            return
        self._holdings.end()
        self._following.cancel()
        self._stop_watching()
        self._exchange.close()
        self._disk.shutdown(wait=False)

    # --- what the agent says --------------------------------------------------------------------------

    def stock(self) -> Message | None:
        """What a service that lost its memory must know."""
        return self._stock.to_json() if self._stock.scope else None

    def hear(self, order: Message) -> None:
        """The service's newest order; it may say something of the files."""
        said = order.get("files") if self._following is not None else None
        word = Word.from_json(said) if said else None
        if word == self._word:
            return
        old, self._word = self._word, word
        if order["type"] == "run":
            self._members = tuple(each["worker"] for each in order["membership"]["members"])
        if word is not None and old is not None and word.scope == old.scope:
            self._note_loss(old, word)
        if word is None or old is None or word.scope != old.scope:
            self.obstacle = ""
        self._news.set()

    @staticmethod
    def _note_loss(old: Word, new: Word) -> None:
        if old.copy is None or not (old.put and new.put):
            return
        if new.copy is None or new.copy.age < old.copy.age:
            log.warning("nobody has %s any more: going on from %s", old.copy, new.copy or "nothing")

    def idle(self) -> None:
        """No process of the script runs now."""
        self._stop_watching()
        self._is_idle = True
        self._news.set()

    def may_start(self, membership: Membership) -> bool:
        """Whether everybody has in place what this membership begins from."""
        if self._word is None or self.obstacle:
            return True
        return self._entered == self._word.scope == str(membership.id)

    def start(self, membership: Membership) -> None:
        """Its processes are about to start."""
        self._is_idle = False
        self._ran, self._began = str(membership.id), time.monotonic()
        if self._word is None:
            return
        place = self._holdings.place
        self._last = (place.seen if place else (), self._began)
        self._watching = asyncio.ensure_future(self._watch())
        self._watching.add_done_callback(_complain)
        self._say(dataclasses.replace(self._stock, here=None, begun=True))

    def _stop_watching(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            self._watching = None
        self._is_writing = False

    def hurry(self) -> None:
        """The processes are to be ended by plan: see at once whether they write."""
        if self._watching is not None:
            self._is_writing = True
            self._hurry.set()

    @property
    def is_writing(self) -> bool:
        """Whether the files change, or are not whole or not copied yet; see `hurry`."""
        return self._is_writing

    def is_owed(self, left_for: float) -> bool:
        """Whether others still need this worker, that has been leaving for so many seconds."""
        word = self._word
        if word is None:
            return False
        if word.scope == self._ran and word.go:  # the service has not answered yet
            return left_for < FAREWELL_SECONDS
        return word.wait

    # --- what the service says ------------------------------------------------------------------------

    async def _follow(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            acting = asyncio.ensure_future(self._act(self._word))
            news = asyncio.ensure_future(self._news.wait())
            try:
                await asyncio.wait({acting, news}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                news.cancel()
                while not acting.done():  # before Python 3.12 one cancellation may be swallowed
                    acting.cancel()
                    await asyncio.wait({acting}, timeout=0.5)
            _complain(acting)

    async def _act(self, word: Word | None) -> None:
        if word is None:
            return
        holdings = self._holdings
        if not self._is_idle:
            if word.keep:
                await self._keep_for_others(word)
        elif self._stock.scope != word.scope:
            await self._on_disk(holdings.take_stock, self._written_at)
            await self._tell(word.scope)
        elif word.go and self._entered != word.scope:
            await self._on_disk(holdings.begin, word.scope, self._members)
            self._entered = word.scope
            self._changed()
        elif word.keep:
            await self._keep_for_others(word)
        elif word.put and holdings.here != word.digest:
            await self._put_in_place(word)

    def _written_at(self, seen: tuple[Seen, ...]) -> tuple[str, float] | None:
        """When these files were written, if it was under this agent's eyes."""
        if not self._ran:
            return None
        last, since = self._last
        return self._ran, (since if seen == last else time.monotonic()) - self._began

    async def _put_in_place(self, word: Word) -> None:
        """Not a moment before all of it is here; what makes that impossible is told."""
        until = time.monotonic() + GET_SECONDS
        straight = False
        try:
            while self._holdings.here != word.digest:
                if word.copy is None:
                    await self._on_disk(self._holdings.clear)
                elif not await self._on_disk(self._holdings.put, word.copy):
                    if self._stock.has(word.digest):
                        await self._tell(word.scope)  # it was here
                    straight = not await self._get(word, straight=straight)
                    if time.monotonic() > until:
                        raise OSError(0, f"nobody gave them within {GET_SECONDS:.0f} s")
        except OSError as error:
            what = error.strerror or str(error)
            where = f" ({error.filename})" if error.filename else ""
            self.obstacle = f"the script's files cannot be put in place: {what}{where}"
            self._changed()
            return
        await self._tell(word.scope)

    async def _keep_for_others(self, word: Word) -> None:
        if not self._holdings.find(word.digest) and await self._get(word, straight=None):
            log.info("keeping a copy for others")
        await self._tell(word.scope)

    async def _get(self, word: Word, *, straight: bool | None) -> bool:
        """Get a copy onto the shelf, or `straight` to its place; None: never there.

        Returns False if the shelf is full.
        """
        assert word.copy is not None
        staged: list[tuple[str, list[str]]] = []

        def stage(parts: tuple[Part, ...]) -> list[str]:
            assert word.copy is not None
            if straight is not None and self._holdings.is_here(word.copy, parts):
                raise _HereError
            staged.append(self._holdings.stage(parts, straight=bool(straight)))
            return staged[-1][1]

        for address, port in self._in_turn(word.holders):
            try:
                parts = await fetch(address, port, self._token, word.digest, stage)
                await self._on_disk(self._holdings.receive, word.copy, parts, *staged[-1])
            except _HereError:
                return True
            except (NotGivenError, RefusedError, WireError, OSError) as error:
                if isinstance(error, OSError) and error.errno in FULL:
                    if straight:
                        raise
                    self._holdings.is_in_trouble(error)
                    return False
                log.warning("no copy from %s: %s", address, error)
            else:
                return True
            finally:
                for each in staged:
                    self._holdings.refuse(*each)
                staged.clear()
        await asyncio.sleep(RETRY_SECONDS)
        return True

    def _in_turn(self, holders: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
        """So that not all ask the same one first."""
        others = [each for each in holders if each[1] != self._exchange.port]
        by = self._exchange.port % max(1, len(others))
        return others[by:] + others[:by]

    def _lose(self, digest: str) -> None:
        self._holdings.lose(digest)
        self._telling = asyncio.ensure_future(self._tell(self._stock.scope))

    async def _tell(self, scope: str) -> None:
        """What is here now, in this scope."""
        holdings, still = self._holdings, self._is_idle
        copies = await self._on_disk(functools.partial(holdings.copies, still=still))
        here = holdings.here if still else None
        port, trouble = self._exchange.port, holdings.trouble
        self._say(Stock(scope, copies, here, not still, port, trouble))

    def _say(self, stock: Stock) -> None:
        self._stock = stock
        self._send({"type": "files", **stock.to_json()})

    async def _on_disk(self, work: Callable[..., T], *arguments: Any) -> T:
        return await self._loop.run_in_executor(self._disk, work, *arguments)

    # --- while the script runs ------------------------------------------------------------------------

    async def _watch(self) -> None:
        settled = self._last[0]  # what needs no copy any more
        while True:
            asked = self._hurry.is_set()
            if not asked:
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._hurry.wait(), LOOK_SECONDS)
            await asyncio.sleep(0.02 if asked else 0)
            seen = await self._on_disk(self._holdings.look)
            now = time.monotonic()
            if seen != self._last[0]:
                self._last = (seen, now)
            unchanged = now - self._last[1]
            if seen and seen != settled and unchanged >= QUIET_SECONDS and await self._copy(seen):
                settled = seen
            self._is_writing = bool(seen) and seen != settled and unchanged < STALE_SECONDS

    async def _copy(self, seen: tuple[Seen, ...]) -> bool:
        """Copy files that are quiet, if they are whole; returns whether they were."""
        if self._damaged == seen:
            return False
        damage = await self._on_disk(self._holdings.damage, seen)
        if damage:
            self._damaged = seen
            log.info("%s", damage)
            return False
        try:
            await self._on_disk(self._holdings.keep, seen, (self._ran, self._last[1] - self._began))
        except (ChangedError, OSError) as error:
            log.info("no copy of what changes: %r", error)
            return False
        log.info("kept a copy of %s", ", ".join(each.name for each in seen[:3]))
        await self._tell(self._ran)
        return True


def _complain(task: asyncio.Task[None]) -> None:
    """Nothing of it is expected to fail."""
    if not task.cancelled() and task.exception() is not None:
        log.error("the files are not kept", exc_info=task.exception())
