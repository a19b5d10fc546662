"""Sends one JSON datagram to the worker's agent. Never raises; waits at most `timeout` seconds."""

from __future__ import annotations

import json
import logging
import os
import socket
from typing import TYPE_CHECKING

from ddpjob_protocol.environment import ENV_MEMBERSHIP, ENV_REPORT_SOCKET

if TYPE_CHECKING:
    from collections.abc import Mapping

_log = logging.getLogger("ddpjob")


def listener() -> str | None:
    """Return the path of the agent's socket; None without an agent."""
    return os.environ.get(ENV_REPORT_SOCKET) or None


def membership() -> str:
    """Return the membership of this process; in live mode its agent does not know it."""
    return os.environ.get(ENV_MEMBERSHIP, "")


def send(path: str, message: Mapping[str, object], timeout: float) -> bool:
    """Send a message; if the socket is full, wait up to `timeout` seconds. Return success."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.connect(path)  # only a connected socket can wait until its peer has room
            sender.settimeout(timeout)
            sender.send(json.dumps(message).encode())
    except (OSError, ValueError):
        _log.debug("report not delivered: %s", message, exc_info=True)
        return False
    return True
