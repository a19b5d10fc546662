"""Gets a copy of the script's files from another worker: the next one is asked where one fails.

May not: decide which copy, or what becomes of it.
"""

from __future__ import annotations

import errno
import logging
from typing import TYPE_CHECKING

from ddpjob_agent.file_sync.transfer import NotGivenError, fetch
from ddpjob_agent.net.framing import RefusedError, WireError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddpjob_agent.file_sync.inventory import Holdings
    from ddpjob_agent.file_sync.replica import Copy, Part
    from ddpjob_agent.file_sync.watcher import OnDisk

# What the own disk says when it takes nothing.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM)

log = logging.getLogger("ddpjob.files")

Holder = tuple[str, int]  # address and port


class FullError(Exception):
    """There is no room on the shelf."""


class _HereError(Exception):
    """What is offered is in place already."""


class Getter:
    """Of one worker; `me` is where others get copies from it."""

    def __init__(self, holdings: Holdings, token: str, on_disk: OnDisk, me: Holder) -> None:
        self._holdings = holdings
        self._token = token
        self._on_disk = on_disk
        self._me = me

    async def get_for_others(self, copy: Copy, holders: Sequence[Holder]) -> bool:
        """Onto the shelf; returns whether somebody gave it. Raises FullError."""
        return await self._ask_all(copy, holders, straight=False, is_for_place=False)

    async def get(self, copy: Copy, holders: Sequence[Holder], *, straight: bool) -> bool:
        """Onto the shelf, or `straight` to its place, unless it is there by now.

        Returns whether somebody gave it. Raises FullError, or OSError where it should go straight.
        """
        return await self._ask_all(copy, holders, straight=straight, is_for_place=True)

    async def _ask_all(
        self, copy: Copy, holders: Sequence[Holder], *, straight: bool, is_for_place: bool
    ) -> bool:
        for holder in self._in_turn(holders):
            try:
                await self._ask(holder, copy, straight=straight, is_for_place=is_for_place)
            except _HereError:
                return True
            except (NotGivenError, RefusedError, WireError, OSError) as error:
                if not isinstance(error, OSError) or error.errno not in FULL:
                    log.warning("no copy from %s: %s", holder[0], error)
                    continue
                if straight:
                    raise
                self._holdings.is_in_trouble(error)
                raise FullError from error
            else:
                return True
        return False

    async def _ask(self, holder: Holder, copy: Copy, *, straight: bool, is_for_place: bool) -> None:
        staged: list[tuple[str, list[str]]] = []

        def stage(parts: tuple[Part, ...]) -> list[str]:
            if is_for_place and self._holdings.is_here(copy, parts):
                raise _HereError
            staged.append(self._holdings.stage(parts, straight=straight))
            return staged[0][1]

        try:
            parts = await fetch(*holder, self._token, copy.digest, stage)
            await self._on_disk(self._holdings.receive, copy, parts, *staged[0])
        finally:
            for each in staged:
                self._holdings.refuse(*each)

    def _in_turn(self, holders: Sequence[Holder]) -> list[Holder]:
        """So that not all ask the same one first."""
        others = [holder for holder in holders if holder != self._me]
        by = self._me[1] % max(1, len(others))
        return others[by:] + others[:by]
