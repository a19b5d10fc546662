"""The c10d endpoints that torchrun connects to, on loopback.

`StoreRelay` forwards each request over the agent's connection to the service and holds no keys.
A client belongs to the membership that was current when the client connected. The client never
reads the keys of another membership, for every --rdzv_id that the user chooses.
`LocalStore` serves the torchrun of one worker in live mode.
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
    """A server that forwards the requests of c10d clients to the service."""

    def __init__(self, link: ServiceConnection) -> None:
        self._link = link
        self.port = 0

    async def start(self) -> None:
        """Listen on a free loopback port, and set `port`."""
        self._server = await asyncio.start_server(self._connected, HOST, 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.CancelledError):  # the agent ends
            await serve_client(reader, writer, _Backend(self._link))


class LocalStore:
    """A c10d store for the processes of this worker alone, on loopback."""

    async def start(self) -> None:
        """Listen on a free loopback port, and set `port`."""
        self.renew()
        self._server = await asyncio.start_server(self._connected, HOST, 0)
        self.port: int = self._server.sockets[0].getsockname()[1]

    def renew(self) -> None:
        """Serve an empty store to clients that connect after this call."""
        self._backend = StoreBackend(Store())

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.CancelledError):  # the agent ends
            await serve_client(reader, writer, self._backend)


class _Backend:
    def __init__(self, link: ServiceConnection) -> None:
        self._link = link
        self._membership = link.membership

    async def execute(self, request: Request) -> bytes:
        """Return the reply of the service; raise OSError if the membership is superseded."""
        return await self._link.execute(request, self._membership)
