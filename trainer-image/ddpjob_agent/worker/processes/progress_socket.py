"""Receives the reports of the user's processes over a Unix datagram socket and forwards them.

Processes may report a hundred steps a second; the service gets about five. The agent's
heartbeats carry the position of each process. The socket never blocks a process: if the socket
is full, the sender drops the report.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
from typing import Any, Callable

from ddpjob_protocol.messages.process import ProgressEvent
from ddpjob_protocol.messages.warnings import MAX_PROBLEM
from ddpjob_protocol.parsers.progress import Position, ProgressReport
from ddpjob_protocol.text import shorten

INTERVAL_SECONDS = 0.2
MAX_AT_ONCE = 100  # datagrams, before the event loop runs other callbacks
MAX_BYTES = 64 << 10
MAX_RANKS = 1024  # whose heartbeats are kept

Report = dict[str, Any]
log = logging.getLogger("ddpjob.reports")


class ProgressSocket:
    """The datagram socket of one pod."""

    def __init__(self, send: Callable[[Report], None], on_refused: Callable[[str], None]) -> None:
        """`on_refused` gets the problem of the first odd datagram of each start."""
        self._send = send
        self._on_refused = on_refused
        self._has_refused = False
        self._latest: dict[ProgressEvent, ProgressReport] = {}
        self._alive: dict[int, tuple[Position, float]] = {}  # by rank, with the event loop's time
        self._waiting: ProgressReport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)

    def listen(self, path: str) -> None:
        """Open the socket at `path`."""
        self._socket.setblocking(False)
        self._socket.bind(path)
        asyncio.get_running_loop().add_reader(self._socket, self._receive)

    def end(self) -> None:
        """Send the last reports of ended processes now, such as the result."""
        self._receive()
        self._flush_waiting()

    def close(self) -> None:
        """Close the socket."""
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()

    def last_messages(self) -> list[Report]:
        """Return the last report of each kind, for a service that restarted."""
        return [report.to_message() for report in self._latest.values()]

    def alive(self) -> list[Report]:
        """Return the last heartbeat of each process, with its age in seconds."""
        now = asyncio.get_running_loop().time()
        return [position.to_message(now - at) for position, at in self._alive.values()]

    def reset(self) -> None:
        """Drop the reports of the previous membership."""
        self._waiting = None
        self._has_refused = False
        self._alive.clear()
        for event in (ProgressEvent.RESUMED, ProgressEvent.STEP):
            self._latest.pop(event, None)

    def _receive(self) -> None:
        with contextlib.suppress(BlockingIOError):
            for _ in range(MAX_AT_ONCE):
                self._on_datagram(self._socket.recv(MAX_BYTES))

    def _on_datagram(self, data: bytes) -> None:
        try:
            content = json.loads(data)
            if isinstance(content, dict) and content.get("event") == ProgressEvent.ALIVE.value:
                self._on_heartbeat(Position.parse(content))
            else:
                self._on_report(ProgressReport.parse(content))
        except (RecursionError, ValueError) as error:
            self._refuse(str(error))

    def _refuse(self, problem: str) -> None:
        if not self._has_refused:
            self._has_refused = True
            log.warning("a report is refused: %s", shorten(problem, MAX_PROBLEM))
            self._on_refused(problem)

    def _on_report(self, report: ProgressReport) -> None:
        is_step = report.event is ProgressEvent.STEP
        if is_step and self._waiting is not None:
            report = report.replace_earlier(self._waiting)
        self._latest[report.event] = report
        if is_step:
            self._waiting = report
            if self._timer is None:
                self._flush()
        else:
            self._flush_waiting()
            self._send(report.to_message())

    def _on_heartbeat(self, new: Position) -> None:
        here = {r: each for r, each in self._alive.items() if each[0].membership == new.membership}
        now = asyncio.get_running_loop().time()
        self._alive = {**here, new.rank: (new, now)}
        if len(self._alive) > MAX_RANKS:
            del self._alive[next(iter(self._alive))]

    def _flush(self) -> None:
        self._timer = None
        if self._waiting is not None:
            self._flush_waiting()
            self._timer = asyncio.get_running_loop().call_later(INTERVAL_SECONDS, self._flush)

    def _flush_waiting(self) -> None:
        if self._waiting is not None:
            self._send(self._waiting.to_message())
            self._waiting = None
