"""The sessions of the operator with the rendezvous services of all jobs.

A report with news calls back at once. If only the training has advanced, a session calls back at
intervals, because each call costs a write of the status.
May not: decide anything, or call the API server itself.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

from ddpjob_operator.rendezvous.client import ServiceClient, Transport
from ddpjob_operator.rendezvous.session import Polling, RendezvousSession

# A request to a node that is lost gets no answer, so a short wait notices it sooner.
POLLING = Polling(wait_seconds=5.0, longest_retry_seconds=5.0, only_news=True)
PROGRESS_SECONDS = 10.0  # between two calls for training progress alone of one job
PROGRESS_PER_SECOND = 10.0  # calls for training progress alone, of all jobs


class Key(NamedTuple):
    """Namespace and name of a job."""

    namespace: str
    name: str


class ServiceId(NamedTuple):
    """Identity of a rendezvous service; a successor has another one."""

    job_uid: str
    term: int
    key: bytes  # proves the operator to it
    address: str  # of its pod


class SessionPool:
    """One session for each job whose service was observed."""

    def __init__(
        self, transport_for: Callable[[Key, ServiceId], Transport], on_report: Callable[[Key], None]
    ) -> None:
        self._transport_for = transport_for
        self._on_report = on_report
        self._sessions: dict[Key, tuple[ServiceId, RendezvousSession]] = {}
        self._polling = dataclasses.replace(POLLING, progress_seconds=self.progress_seconds)

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, key: Key, service: ServiceId) -> RendezvousSession:
        """Return the session with this service; end a session with an earlier service."""
        old = self._sessions.get(key)
        if old is not None and old[0] == service and not old[1].failed:
            return old[1]
        self.close(key)
        client = ServiceClient(self._transport_for(key, service), service.key)
        session = RendezvousSession(client, self._polling, functools.partial(self._on_report, key))
        self._sessions[key] = service, session
        session.start()
        return session

    def progress_seconds(self) -> float:
        """Return the interval for training progress alone, which grows with the number of jobs."""
        return max(PROGRESS_SECONDS, len(self._sessions) / PROGRESS_PER_SECOND)

    def get(self, key: Key) -> RendezvousSession | None:
        """Return the session of a job, or None if no service was observed."""
        found = self._sessions.get(key)
        return found[1] if found else None

    def close(self, key: Key) -> None:
        """End the session of a job and drop its report."""
        found = self._sessions.pop(key, None)
        if found is not None:
            found[1].cancel()

    async def close_all(self) -> None:
        """End all sessions."""
        sessions = [session for _, session in self._sessions.values()]
        self._sessions.clear()
        await asyncio.gather(*(each.close() for each in sessions), return_exceptions=True)
