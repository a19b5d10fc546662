"""Watches the files that a running script saves to, and stores replicas of complete ones.

May not: communicate, or change the files.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, Callable

from ddpjob_agent.file_sync.disk.local_files import ChangedError

if TYPE_CHECKING:
    from ddpjob_agent.file_sync.disk.local_files import FileFingerprint
    from ddpjob_agent.file_sync.inventory import At, LocalReplicas

SCAN_SECONDS = 0.2  # between two checks of the files
# Files unchanged for this time count as written. A writer of several files, or one with a slow disk
# or network, pauses longer than SCAN_SECONDS between two writes. A format that reveals its end
# needs no such time; other formats give no other sign.
QUIET_SECONDS = 1.0
STALE_SECONDS = 10.0  # without a change; then no process is writing an incomplete file

OnDisk = Callable[..., Awaitable[Any]]  # runs a function with its arguments in a thread

log = logging.getLogger("ddpjob.files")


class FileWatcher:
    """A watch over the processes of one membership; calls `on_stored` after each new replica."""

    def __init__(
        self,
        replicas: LocalReplicas,
        membership: str,
        on_disk: OnDisk,
        on_stored: Callable[[], Awaitable[None]],
    ) -> None:
        self._replicas = replicas
        self._membership = membership
        self._on_disk = on_disk
        self._on_stored = on_stored
        self._began = time.monotonic()
        self._seen = replicas.installed.seen if replicas.installed else ()
        self._since = self._began  # start of their current state
        self._damaged: tuple[FileFingerprint, ...] = ()  # state in which they were incomplete
        self._hurry = asyncio.Event()
        self._over = asyncio.Event()
        self._is_writing = False
        self._task = asyncio.ensure_future(self._run())
        self._task.add_done_callback(log_task_failure)

    def stop(self) -> None:
        """Stop watching: the processes have ended."""
        self._over.set()  # before Python 3.12 wait_for may swallow a cancellation
        self._task.cancel()

    def hurry(self) -> None:
        """Check at once whether the processes write; their end is due."""
        self._is_writing = True
        self._hurry.set()

    @property
    def is_writing(self) -> bool:
        """True while the files change, are incomplete, or are not stored; true after `hurry`."""
        return self._is_writing and not self._task.done()

    def written_at(self, seen: tuple[FileFingerprint, ...]) -> At:
        """Return the time of the last write to these current files."""
        at = self._since if seen == self._seen else time.monotonic()
        return self._membership, at - self._began

    async def _run(self) -> None:
        settled = self._seen  # files that need no new replica
        while not self._over.is_set():
            hurries = self._hurry.is_set()
            if hurries:
                await asyncio.sleep(0.02)
            else:
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._hurry.wait(), SCAN_SECONDS)
            seen, now = await self._on_disk(self._replicas.files.fingerprint), time.monotonic()
            if seen != self._seen:
                self._seen, self._since = seen, now
            unchanged = now - self._since
            if self._over.is_set():
                return
            if seen and seen != settled and unchanged >= QUIET_SECONDS and await self._store(seen):
                settled = seen
            self._is_writing = bool(seen) and seen != settled and unchanged < STALE_SECONDS

    async def _store(self, seen: tuple[FileFingerprint, ...]) -> bool:
        """Store unchanged files, if they are complete; return whether they were stored."""
        if self._damaged == seen:
            return False
        damage = await self._on_disk(self._replicas.files.find_corruption, seen)
        if damage:
            self._damaged = seen
            log.info("%s", damage)
            return False
        try:
            await self._on_disk(self._replicas.store, seen, self.written_at(seen))
        except (ChangedError, OSError) as error:
            log.info("the files still change and are not copied: %r", error)
            return False
        await self._on_stored()
        return True


def log_task_failure(task: asyncio.Task[None]) -> None:
    """Log the exception of a task; none is expected."""
    if not task.cancelled() and task.exception() is not None:
        log.error("the files are not kept", exc_info=task.exception())
