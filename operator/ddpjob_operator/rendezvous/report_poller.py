"""Follows the reports of all rendezvous services, with one long poll for each.

Calls back at once if a report contains news. If only the training has advanced, the poller calls
back at intervals, because each call costs a write of the status.
May not: decide anything, or call the API server itself.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from typing import NamedTuple

from ddpjob_operator.rendezvous.client import ServiceClient, ServiceUnavailableError
from ddpjob_protocol.control import Report

PROGRESS_SECONDS = 10.0
FIRST_RETRY_SECONDS = 0.2
LAST_RETRY_SECONDS = 5.0


class Key(NamedTuple):
    """Namespace and name of a job."""

    namespace: str
    name: str


@dataclasses.dataclass
class _Subscription:
    identity: tuple[str, int, str]  # UID of the job, term, token
    client: ServiceClient
    task: asyncio.Task[None] | None = None
    tried: bool = False  # the first request has ended, with or without an answer
    report: Report | None = None


class ReportPoller:
    """A collection of the newest report of every job."""

    def __init__(self, on_report: Callable[[Key], None]) -> None:
        self._on_report = on_report
        self._followers: dict[Key, _Subscription] = {}

    def __len__(self) -> int:
        return len(self._followers)

    def subscribe(self, key: Key, uid: str, term: int, token: str, client: ServiceClient) -> None:
        """Follow this service instead of an earlier service of the job."""
        identity = (uid, term, token)
        old = self._followers.get(key)
        if old is not None and old.identity == identity:
            return
        self.unsubscribe(key)
        follower = self._followers[key] = _Subscription(identity, client)
        follower.task = asyncio.create_task(self._poll(key, follower))

    def unsubscribe(self, key: Key) -> None:
        """Stop following the service and drop its report."""
        follower = self._followers.pop(key, None)
        if follower is not None and follower.task is not None:
            follower.task.cancel()

    def report(self, key: Key) -> Report | None:
        """Return the newest report."""
        follower = self._followers.get(key)
        return follower.report if follower else None

    def awaiting_first_report(self, key: Key) -> bool:
        """Return whether the first request is pending; its end calls `on_report`."""
        follower = self._followers.get(key)
        return follower is not None and not follower.tried

    def client(self, key: Key) -> ServiceClient | None:
        """Return the client of the followed service."""
        follower = self._followers.get(key)
        return follower.client if follower else None

    async def close(self) -> None:
        """Stop following all services."""
        tasks = [f.task for f in self._followers.values() if f.task is not None]
        for key in list(self._followers):
            self.unsubscribe(key)
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _poll(self, key: Key, follower: _Subscription) -> None:
        version, retry = 0, FIRST_RETRY_SECONDS
        while True:
            wait = PROGRESS_SECONDS if version else 0.0
            try:
                report = await follower.client.report(after=version, wait=wait, only_news=True)
            except ServiceUnavailableError:
                version = 0
                if not follower.tried:
                    follower.tried = True
                    self._on_report(key)
                await asyncio.sleep(retry)
                retry = min(2 * retry, LAST_RETRY_SECONDS)
                continue
            retry = FIRST_RETRY_SECONDS
            follower.tried = True
            if follower.report is None or report != follower.report:
                follower.report = report
                self._on_report(key)
            version = report.version
