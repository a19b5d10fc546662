"""Refuses a write at the last moment: on an open connection, directly before its bytes are sent.

A check before that may be too early, because a connection can take seconds, and a paused process
continues where it was paused.
May not: know why a write is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import aiohttp
from aiohttp import ClientRequest

READS = ("GET", "HEAD", "OPTIONS")
Check = Callable[[], bool]


class NotSentError(aiohttp.ClientError):
    """A write was refused before any byte of it was sent."""


def request_class(may_write: Check) -> type[ClientRequest]:
    """Return the class of requests for an `aiohttp.ClientSession` whose writes are checked."""

    class CheckedRequest(ClientRequest):
        async def send(self, conn: Any) -> Any:
            if self._is_refused():
                raise _refusal(self)
            return await super().send(conn)

        async def write_bytes(self, writer: Any, conn: Any, *arguments: Any) -> None:
            # Headers and body leave here, in a task that may start later than `send` returns.
            if self._is_refused():
                conn.protocol.set_exception(_refusal(self))
                return
            await super().write_bytes(writer, conn, *arguments)

        def _is_refused(self) -> bool:
            return self.method not in READS and not may_write()

    return CheckedRequest


def _refusal(request: ClientRequest) -> NotSentError:
    return NotSentError(
        f"{request.method} {request.url.path} was not sent, because this operator no longer holds "
        "the Lease for sure"
    )
