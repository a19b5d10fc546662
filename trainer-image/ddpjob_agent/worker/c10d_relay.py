"""The c10d endpoint that torchrun sees: on loopback, each request passed on over the agent's link.

A client belongs to the membership that was current when it connected: it never sees another
one's keys, whatever --rdzv_id the user chose. Holds no keys itself. `LocalStore` is another one,
for torchruns that meet nobody else (L2).
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from ddpjob_agent.c10d.server import StoreBackend, serve_client
from ddpjob_agent.c10d.store import Store

if TYPE_CHECKING:
    from ddpjob_agent.c10d.protocol import Request
    from ddpjob_agent.net.service_connection import ServiceConnection

HOST = "127.0.0.1"


class StoreRelay:
    """Listens for c10d clients."""

    def __init__(self, link: ServiceConnection) -> None:
        self._link = link
        self.port = 0

    async def start(self) -> None:
        """Listen on a free loopback port, then known as `port`."""
        self._server = await asyncio.start_server(self._connected, HOST, 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.CancelledError):  # the agent ends
            await serve_client(reader, writer, _Backend(self._link))


class LocalStore:
    """A c10d store for the processes of this worker alone, on loopback."""

    async def start(self) -> None:
        """Listen on a free loopback port, then known as `port`."""
        self.renew()
        self._server = await asyncio.start_server(self._connected, HOST, 0)
        self.port: int = self._server.sockets[0].getsockname()[1]

    def renew(self) -> None:
        """Who connects from now on finds it empty."""
        self._backend = StoreBackend(Store())

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.CancelledError):  # the agent ends
            await serve_client(reader, writer, self._backend)


class _Backend:
    def __init__(self, link: ServiceConnection) -> None:
        self._link = link
        self._membership = link.membership

    async def execute(self, request: Request) -> bytes:
        """The reply of the service; an OSError once the membership is overtaken."""
        return await self._link.execute(request, self._membership)
