"""Takes what the user's processes report, over a Unix datagram socket, and passes it on, thinned.

Steps come a hundred times a second; the service wants to know a few times. Never blocks a
process: a full socket is the sender's to ignore.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from typing import Any, Callable

from .contract import Event

INTERVAL_SECONDS = 0.2

Report = dict[str, Any]
log = logging.getLogger("ddpjob.reports")


class Reports(asyncio.DatagramProtocol):
    """Receives the datagrams of one pod."""

    def __init__(self, send: Callable[[Report], None]) -> None:
        self._send = send
        self._latest: dict[Event, Report] = {}
        self._waiting: Report | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def listen(self, path: str) -> None:
        """Open the socket at `path`."""
        loop = asyncio.get_running_loop()
        await loop.create_datagram_endpoint(lambda: self, local_addr=path, family=socket.AF_UNIX)

    def recall(self) -> list[Report]:
        """The last report of each kind, for a service that lost its memory."""
        return list(self._latest.values())

    def begin(self) -> None:
        """A new membership begins: what its processes have not said yet is unknown."""
        self._waiting = None
        for event in (Event.RESUMED, Event.STEP):
            self._latest.pop(event, None)

    def datagram_received(self, data: bytes, _addr: object) -> None:
        """asyncio calls this for each datagram."""
        try:
            report = json.loads(data)
            event, _ = Event(report["event"]), int(report["step"])
        except (KeyError, TypeError, ValueError) as error:
            log.warning("a report that cannot be read: %r", error)
            return
        self._latest[event] = report
        if event is Event.STEP:
            self._waiting = report
            if self._timer is None:
                self._flush()
        else:
            self._flush_waiting()
            self._send(report)

    def _flush(self) -> None:
        self._timer = None
        if self._waiting is not None:
            self._flush_waiting()
            self._timer = asyncio.get_running_loop().call_later(INTERVAL_SECONDS, self._flush)

    def _flush_waiting(self) -> None:
        if self._waiting is not None:
            self._send(self._waiting)
            self._waiting = None
