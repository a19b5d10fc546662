"""Fetches a replica of another worker to the own disk, from the first holder that sends it.

May not: choose the replica.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from typing import TYPE_CHECKING, Any, Callable

from ddpjob_agent.file_sync.decisions.admission import RefusedError
from ddpjob_agent.file_sync.transfer import TransferError, fetch

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence
    from concurrent.futures import Executor

    from ddpjob_agent.file_sync.decisions.replica import Parts, Replica
    from ddpjob_agent.file_sync.disk.places import Place
    from ddpjob_agent.file_sync.inventory import LocalReplicas
    from ddpjob_protocol.keys.credentials import Credential

Holder = tuple[str, int]  # address and port

log = logging.getLogger("ddpjob.files")


class Fetcher:
    """The receiving side of one worker."""

    def __init__(
        self,
        replicas: LocalReplicas,
        key: Credential,
        disk: Executor,
        on_disk: Callable[..., Awaitable[Any]],
    ) -> None:
        """`on_disk` runs a function in `disk` and returns its result."""
        self._replicas = replicas
        self._key = key
        self._disk = disk
        self._on_disk = on_disk

    async def fetch(self, copy: Replica, holders: Sequence[Holder], *, to_store: bool) -> bool:
        """Fetch a replica from the first holder that sends it; return False to ask again later.

        A replica that is not admitted is recorded as refused, and not asked for again. Raises
        OSError if the own disk fails.
        """
        for holder in holders:
            try:
                await self._fetch_from(holder, copy, to_store=to_store)
            except TransferError as error:
                log.warning("no copy from %s: %s", holder[0], error)
            except RefusedError as error:
                self._replicas.refuse(copy, holder[0], error)
                return True
            else:
                return True
        return False

    async def _fetch_from(self, holder: Holder, copy: Replica, *, to_store: bool) -> None:
        replicas = self._replicas
        targets: list[Place] = []

        async def stage(parts: Parts) -> list[Place]:
            work = functools.partial(replicas.stage, copy, parts, to_store=to_store)
            targets[:] = await self._on_disk(work)
            return targets

        try:
            parts = await fetch(holder, self._key, copy.digest, stage)
            work = functools.partial(replicas.receive, copy, parts, targets, to_store=to_store)
            await self._on_disk(work)
        finally:
            with contextlib.suppress(RuntimeError):  # the agent ends
                self._disk.submit(replicas.discard, tuple(targets), to_store=to_store)
