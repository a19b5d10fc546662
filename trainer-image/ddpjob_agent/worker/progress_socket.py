"""Takes what the user's processes report, over a Unix datagram socket, and passes it on, thinned.

Steps come a hundred times a second; the service wants to know a few times. Where each process is
goes with the agent's beats. Never blocks a process: a full socket is the sender's to ignore.
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
COUNTS = ("total", "skipped", "place", "places")
MAX_AT_ONCE = 100  # datagrams, before others get their turn
MAX_BYTES = 64 << 10
MAX_WHERE = 200  # characters

Report = dict[str, Any]
log = logging.getLogger("ddpjob.reports")


class ProgressSocket:
    """Receives the datagrams of one pod."""

    def __init__(self, send: Callable[[Report], None]) -> None:
        self._send = send
        self._latest: dict[ProgressEvent, Report] = {}
        self._alive: dict[int, tuple[Report, float]] = {}  # by rank, with the time
        self._waiting: Report | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)

    def listen(self, path: str) -> None:
        """Open the socket at `path`."""
        self._socket.setblocking(False)
        self._socket.bind(path)
        asyncio.get_running_loop().add_reader(self._socket, self._receive)

    def end(self) -> None:
        """The processes have ended: pass on now what they said last, such as the result."""
        self._receive()
        self._flush_waiting()

    def close(self) -> None:
        """Hear nothing more."""
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()

    def last_messages(self) -> list[Report]:
        """The last report of each kind, for a service that lost its memory."""
        return list(self._latest.values())

    def alive(self) -> list[Report]:
        """What each process said last of how far it is, and how many seconds ago."""
        now = asyncio.get_running_loop().time()
        return [{**report, "age": now - at} for report, at in self._alive.values()]

    def reset(self) -> None:
        """A new membership begins: what its processes have not said yet is unknown."""
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
            if event is ProgressEvent.STEP and self._waiting is not None:  # which is passed over
                told = self._waiting.get("metrics", {})
                report["metrics"] = {**told, **report.get("metrics", {})}
        except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
            log.warning("a report that cannot be read: %r", error)
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
    """What user code sent, with numbers where numbers belong. Raises what int() and float() raise."""
    checked = {**report, "step": int(report["step"])}
    for name in COUNTS:
        if report.get(name) is not None:
            checked[name] = int(report[name])
    if "metrics" in report:
        checked["metrics"] = {name: float(value) for name, value in report["metrics"].items()}
    return checked
