"""Looks at the files that a script saves to, while it runs, and copies them when they are whole.

May not: talk to anybody but whom it is told to, or touch the files.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, Callable, Protocol, TypeVar

from ddpjob_agent.file_sync.local_files import ChangedError

if TYPE_CHECKING:
    from ddpjob_agent.file_sync.inventory import At, LocalReplicas
    from ddpjob_agent.file_sync.local_files import FileFingerprint

LOOK_SECONDS = 0.2  # between two looks at the files
# Unchanged for so long they are not being written to. A writer of several files, or one whose disk
# or network makes it pause, takes longer between two writes than one look; a format that shows its
# end needs no more, and of another one nothing else tells.
QUIET_SECONDS = 1.0
STALE_SECONDS = 10.0  # not whole, and unchanged for so long: nobody is writing it

T = TypeVar("T")

log = logging.getLogger("ddpjob.files")


class OnDisk(Protocol):
    """Does in a thread what may block."""

    def __call__(self, work: Callable[..., T], *arguments: Any) -> Awaitable[T]:
        """What `work` returns."""


class FileWatcher:
    """From the start of a membership's processes to their end; `told` after each new copy."""

    def __init__(
        self,
        holdings: LocalReplicas,
        membership: str,
        on_disk: OnDisk,
        told: Callable[[], Awaitable[None]],
    ) -> None:
        self._holdings = holdings
        self._membership = membership
        self._on_disk = on_disk
        self._told = told
        self._began = time.monotonic()
        self._seen = holdings.place.seen if holdings.place else ()
        self._since = self._began  # when they were first seen like this
        self._damaged: tuple[FileFingerprint, ...] = ()  # as they were when they were not whole
        self._hurry = asyncio.Event()
        self._over = asyncio.Event()
        self._is_writing = False
        self._task = asyncio.ensure_future(self._run())
        self._task.add_done_callback(log_task_failure)

    def stop(self) -> None:
        """The processes have ended."""
        self._over.set()  # before Python 3.12 wait_for may swallow a cancellation
        self._task.cancel()

    def hurry(self) -> None:
        """They are to be ended: see at once whether they write."""
        self._is_writing = True
        self._hurry.set()

    @property
    def is_writing(self) -> bool:
        """Whether the files change, or are not whole or not copied yet; true since a `hurry`."""
        return self._is_writing and not self._task.done()

    def written_at(self, seen: tuple[FileFingerprint, ...]) -> At:
        """When these files, which are there now, were written last."""
        at = self._since if seen == self._seen else time.monotonic()
        return self._membership, at - self._began

    async def _run(self) -> None:
        settled = self._seen  # what needs no copy any more
        while not self._over.is_set():
            hurries = self._hurry.is_set()
            if hurries:
                await asyncio.sleep(0.02)
            else:
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._hurry.wait(), LOOK_SECONDS)
            seen, now = await self._on_disk(self._holdings.fingerprint), time.monotonic()
            if seen != self._seen:
                self._seen, self._since = seen, now
            unchanged = now - self._since
            if self._over.is_set():
                return
            if seen and seen != settled and unchanged >= QUIET_SECONDS and await self._store(seen):
                settled = seen
            self._is_writing = bool(seen) and seen != settled and unchanged < STALE_SECONDS

    async def _store(self, seen: tuple[FileFingerprint, ...]) -> bool:
        """Copy files that are quiet, if they are whole; returns whether they were."""
        if self._damaged == seen:
            return False
        damage = await self._on_disk(self._holdings.find_corruption, seen)
        if damage:
            self._damaged = seen
            log.info("%s", damage)
            return False
        try:
            await self._on_disk(self._holdings.store, seen, self.written_at(seen))
        except (ChangedError, OSError) as error:
            log.info("no copy of what changes: %r", error)
            return False
        await self._told()
        return True


def log_task_failure(task: asyncio.Task[None]) -> None:
    """Nothing of it is expected to fail."""
    if not task.cancelled() and task.exception() is not None:
        log.error("the files are not kept", exc_info=task.exception())
