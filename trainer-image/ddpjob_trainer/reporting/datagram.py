"""One JSON datagram to the worker's agent. Never raises, and waits no longer than it is told to."""

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
    """The agent's socket, where there is an agent."""
    return os.environ.get(ENV_REPORT_SOCKET) or None


def membership() -> str:
    """In which this process is: at L2 its agent cannot know."""
    return os.environ.get(ENV_MEMBERSHIP, "")


def send(path: str, message: Mapping[str, object], timeout: float) -> bool:
    """Send it, or wait so many seconds for room, or let it be; whether it was sent."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.connect(path)  # only a connected socket can wait for room at the other end
            sender.settimeout(timeout)
            sender.send(json.dumps(message).encode())
    except (OSError, ValueError):
        _log.debug("report not delivered: %s", message, exc_info=True)
        return False
    return True
