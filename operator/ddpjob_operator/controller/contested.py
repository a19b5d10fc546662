"""Limits how often two operators overwrite each other's status of one job.

Two may write for a moment: the leader, and one that does not know that it has lost the Lease. What
they observe can differ, and each write queues the job for both.
May not: write, or decide what the status is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ddpjob_operator.rendezvous.session_pool import Key

PAUSE_SECONDS = 5.0  # between two writes of a status that another writer changes


class _Write(NamedTuple):
    status: Mapping[str, Any]
    at: float


class Contested:
    """The last status of each job that this operator has written."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._writes: dict[Key, _Write] = {}

    def seconds_left(self, key: Key, status: Mapping[str, Any]) -> float:
        """Return the seconds until this status may be overwritten; 0 if it is the operator's own."""
        last = self._writes.get(key)
        if last is None or last.status == status:
            return 0.0
        return max(0.0, last.at + PAUSE_SECONDS - self._clock())

    def wrote(self, key: Key, status: Mapping[str, Any]) -> None:
        """Note a status as the API server stores it."""
        self._writes[key] = _Write(status, self._clock())

    def forget(self, key: Key) -> None:
        """Drop what is known of a job that no longer exists."""
        self._writes.pop(key, None)
