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

from ddpjob_protocol.process import ProgressEvent

INTERVAL_SECONDS = 0.2
COUNTS = ("total", "skipped", "storage", "storages")
MAX_AT_ONCE = 100  # datagrams, before the event loop runs other callbacks
MAX_BYTES = 64 << 10
MAX_WHERE = 200  # characters

Report = dict[str, Any]
log = logging.getLogger("ddpjob.reports")


class ProgressSocket:
    """The datagram socket of one pod."""

    def __init__(self, send: Callable[[Report], None]) -> None:
        self._send = send
        self._latest: dict[ProgressEvent, Report] = {}
        self._alive: dict[int, tuple[Report, float]] = {}  # by rank, with the event loop's time
        self._waiting: Report | None = None
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
        return list(self._latest.values())

    def alive(self) -> list[Report]:
        """Return the last heartbeat of each process, with its age in seconds."""
        now = asyncio.get_running_loop().time()
        return [{**report, "age": now - at} for report, at in self._alive.values()]

    def reset(self) -> None:
        """Drop the reports of the previous membership."""
        self._waiting = None
        self._alive.clear()
        for event in (ProgressEvent.RESUMED, ProgressEvent.STEP):
            self._latest.pop(event, None)

    def _receive(self) -> None:
        with contextlib.suppress(BlockingIOError):
            for _ in range(MAX_AT_ONCE):
                self._on_datagram(self._socket.recv(MAX_BYTES))

    def _on_datagram(self, data: bytes) -> None:
        try:
            report = _numbers_checked(json.loads(data))
            event = ProgressEvent(report["event"])
            if event is ProgressEvent.ALIVE:
                self._on_heartbeat(report)
                return
            if event is ProgressEvent.STEP and self._waiting is not None:  # replaced by this report
                earlier = self._waiting.get("metrics", {})
                report["metrics"] = {**earlier, **report.get("metrics", {})}
        except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
            log.warning("a report is unreadable: %r", error)
            return
        self._latest[event] = report
        if event is ProgressEvent.STEP:
            self._waiting = report
            if self._timer is None:
                self._flush()
        else:
            self._flush_waiting()
            self._send(report)

    def _on_heartbeat(self, report: Report) -> None:
        rank, membership = int(report["rank"]), str(report["membership"])
        where = str(report["where"])[:MAX_WHERE]
        fields = {"rank": rank, "step": int(report["step"]), "where": where}
        here = {r: each for r, each in self._alive.items() if each[0]["membership"] == membership}
        now = asyncio.get_running_loop().time()
        self._alive = {**here, rank: ({**fields, "membership": membership}, now)}

    def _flush(self) -> None:
        self._timer = None
        if self._waiting is not None:
            self._flush_waiting()
            self._timer = asyncio.get_running_loop().call_later(INTERVAL_SECONDS, self._flush)

    def _flush_waiting(self) -> None:
        if self._waiting is not None:
            self._send(self._waiting)
            self._waiting = None


def _numbers_checked(report: Report) -> Report:
    """Return the report of user code with its counts as numbers; raise as int() and float() do."""
    checked = {**report, "step": int(report["step"])}
    for name in COUNTS:
        if report.get(name) is not None:
            checked[name] = int(report[name])
    if "metrics" in report:
        checked["metrics"] = {name: float(value) for name, value in report["metrics"].items()}
    return checked
