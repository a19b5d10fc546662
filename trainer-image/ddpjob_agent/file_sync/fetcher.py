"""Fetches a replica from another worker. If one holder fails, the next one is tried.

May not: choose the replica, or decide its use.
"""

from __future__ import annotations

import errno
import logging
from typing import TYPE_CHECKING

from ddpjob_agent.file_sync.transfer import TransferError, fetch
from ddpjob_agent.net.framing import FramingError, RejectedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddpjob_agent.file_sync.inventory import LocalReplicas
    from ddpjob_agent.file_sync.replica import FileEntry, Replica
    from ddpjob_agent.file_sync.watcher import OnDisk

# Errors of the local disk when it accepts no data.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM)

log = logging.getLogger("ddpjob.files")

Holder = tuple[str, int]  # address and port


class DiskFullError(Exception):
    """The replica store has no room."""


class _AlreadyInstalledError(Exception):
    """The offered replica is installed already."""


class ReplicaFetcher:
    """The fetcher of one worker; `me` is the address and port of its replica server."""

    def __init__(self, holdings: LocalReplicas, token: str, on_disk: OnDisk, me: Holder) -> None:
        self._holdings = holdings
        self._token = token
        self._on_disk = on_disk
        self._me = me

    async def fetch_for_others(self, copy: Replica, holders: Sequence[Holder]) -> bool:
        """Fetch a replica into the store; return whether a holder sent it. Raises DiskFullError."""
        return await self._fetch_from_any(copy, holders, straight=False, is_for_place=False)

    async def fetch(self, copy: Replica, holders: Sequence[Holder], *, bypass_store: bool) -> bool:
        """Fetch a replica into the store, or beside the script's files with `bypass_store`.

        Does nothing if the replica is installed already. Returns False if no holder sent it. Raises
        DiskFullError if the store is full; with `bypass_store`, raises OSError.
        """
        return await self._fetch_from_any(copy, holders, straight=bypass_store, is_for_place=True)

    async def _fetch_from_any(
        self, copy: Replica, holders: Sequence[Holder], *, straight: bool, is_for_place: bool
    ) -> bool:
        for holder in self._rotate(holders):
            try:
                await self._fetch_from(holder, copy, straight=straight, is_for_place=is_for_place)
            except _AlreadyInstalledError:
                return True
            except (TransferError, RejectedError, FramingError, OSError) as error:
                if not isinstance(error, OSError) or error.errno not in FULL:
                    log.warning("no copy from %s: %s", holder[0], error)
                    continue
                if straight:
                    raise
                self._holdings.set_problem(error)
                raise DiskFullError from error
            else:
                return True
        return False

    async def _fetch_from(
        self, holder: Holder, copy: Replica, *, straight: bool, is_for_place: bool
    ) -> None:
        staged: list[tuple[str, list[str]]] = []

        def stage(parts: tuple[FileEntry, ...]) -> list[str]:
            if is_for_place and self._holdings.is_installed(copy, parts):
                raise _AlreadyInstalledError
            staged.append(self._holdings.stage(parts, bypass_store=straight))
            return staged[0][1]

        try:
            parts = await fetch(*holder, self._token, copy.digest, stage)
            await self._on_disk(self._holdings.receive, copy, parts, *staged[0])
        finally:
            for each in staged:
                self._holdings.abort_receive(*each)

    def _rotate(self, holders: Sequence[Holder]) -> list[Holder]:
        """Return the other holders, rotated so that workers ask different holders first."""
        others = [holder for holder in holders if holder != self._me]
        by = self._me[1] % max(1, len(others))
        return others[by:] + others[:by]
