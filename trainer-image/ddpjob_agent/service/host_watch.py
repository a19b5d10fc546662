"""A watch over the hosts of connected agents: a host that acknowledges nothing is gone.

A process may be starved or stopped: its heartbeats are late, but the kernel of its host still
acknowledges what the service sends. So the service sends a probe on each quiet connection, and a
connection whose probe stays without an acknowledgement has a silent host. That takes a fraction of
the heartbeat deadline, and no load on the other host makes it wrong.

If most hosts are silent, the fault is near the service: then only the heartbeat deadlines count.

May not: decide that a worker is lost; `membership` does, by its deadline for silent hosts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Callable

if TYPE_CHECKING:
    from ddpjob_agent.net.sockets.tcp_info import TcpInfo

PERIOD_SECONDS = 0.15  # between two checks; a connection that was quiet for as long gets a probe
CHECKS_PER_SECOND = 2000.0  # at most: with more connections the period is longer
PROBE_SECONDS = 0.25  # a probe is sent again in this time: one lost packet is not silence
STALLED_PERIODS = 3  # a check that is later than this follows a stall: probes count from it


def period(connections: int) -> float:
    """Return the seconds between two checks of this number of connections."""
    return max(PERIOD_SECONDS, connections / CHECKS_PER_SECOND)


class HostWatch:
    """The connections with data that wait for an acknowledgement, by worker."""

    def __init__(self) -> None:
        self._waits_since: dict[str, float] = {}
        self._checked_at = 0.0

    def check(
        self, connections: Mapping[str, TcpInfo], now: float, probe: Callable[[str], None]
    ) -> dict[str, float]:
        """Probe quiet connections; return since when each silent host has been silent."""
        stalled = now - self._checked_at > STALLED_PERIODS * period(len(connections))
        before = {} if stalled else self._waits_since
        self._checked_at, self._waits_since = now, {}
        silent = {}
        for worker, info in connections.items():
            if not info.unacknowledged and info.silence < PERIOD_SECONDS:
                continue
            if not info.unacknowledged:
                probe(worker)
            since = before.get(worker, now) if info.unacknowledged else now
            self._waits_since[worker] = since
            if info.silence >= now - since >= PROBE_SECONDS:
                silent[worker] = now - info.silence
        return silent if 2 * len(silent) <= len(connections) else {}


class HostTimer:
    """Calls a check again and again, from `start` to `close`."""

    def __init__(self, check: Callable[[float], int]) -> None:
        """`check` takes the time and returns the number of connections."""
        self._check = check
        self._handle: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Check for the first time, one period from now."""
        self._call_in(PERIOD_SECONDS)

    def close(self) -> None:
        """Check no more."""
        if self._handle is not None:
            self._handle.cancel()

    def _call_in(self, seconds: float) -> None:
        self._handle = asyncio.get_running_loop().call_later(seconds, self._run)

    def _run(self) -> None:
        count = 0
        try:
            count = self._check(time.monotonic())
        finally:
            self._call_in(period(count))
