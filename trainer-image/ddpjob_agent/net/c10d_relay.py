"""The c10d endpoints that torchrun connects to, on loopback.

`StoreRelay` forwards each request over the agent's connection to the service and holds no keys.
A client belongs to the membership that was current when the client connected. The client never
reads the keys of another membership, for every --rdzv_id that the user chooses. The relay reports a
command that never connects.
`LocalStore` serves the torchrun of one worker in live mode.
Both serve processes of the agent's user and of root only.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Callable

from ddpjob_agent.c10d.server import StoreBackend, serve_client
from ddpjob_agent.c10d.store import Store
from ddpjob_agent.net.rendezvous_use import RENDEZVOUS_SECONDS, RendezvousUse
from ddpjob_agent.net.sockets.loopback_peers import LoopbackPeers

if TYPE_CHECKING:
    from ddpjob_agent.c10d.protocol import Request
    from ddpjob_agent.c10d.server import Backend
    from ddpjob_agent.net.rendezvous_use import ExpectedUse
    from ddpjob_agent.net.service_connection import ServiceConnection
    from ddpjob_protocol.messages.warnings import AgentWarning

HOST = "127.0.0.1"


class StoreRelay:
    """A server that forwards the requests of c10d clients to the service."""

    def __init__(self, link: ServiceConnection) -> None:
        self._link = link
        self._use = RendezvousUse()
        self._deadline: asyncio.TimerHandle | None = None
        self.port = 0

    async def start(self) -> None:
        """Listen on a free loopback port, and set `port`."""
        self._server = await asyncio.start_server(self._connected, HOST, 0)
        self._peers = LoopbackPeers(self._server)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _serve(self._peers, reader, writer, _Backend(self._link, self._used))

    def on_start(self, expected: ExpectedUse | None) -> None:
        """Record that a command starts, with the use of the rendezvous that it should make."""
        self._use.on_start(expected, time.monotonic())
        self._cancel_deadline()
        if expected is not None:
            loop = asyncio.get_running_loop()
            self._deadline = loop.call_later(RENDEZVOUS_SECONDS, self._detect)

    def on_exit(self, *, succeeded: bool) -> None:
        """Report a command that succeeded without the rendezvous."""
        self._cancel_deadline()
        self._report(self._use.on_exit(succeeded=succeeded))

    def _used(self, membership: str) -> None:
        self._report(self._use.on_request(membership))

    def _detect(self) -> None:
        self._report(self._use.detect(time.monotonic()))

    def _report(self, warning: AgentWarning | None) -> None:
        if warning is not None:
            self._link.send(warning.to_message())

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()


class LocalStore:
    """A c10d store for the processes of this worker alone, on loopback."""

    async def start(self) -> None:
        """Listen on a free loopback port, and set `port`."""
        self.renew()
        self._server = await asyncio.start_server(self._connected, HOST, 0)
        self._peers = LoopbackPeers(self._server)
        self.port: int = self._server.sockets[0].getsockname()[1]

    def renew(self) -> None:
        """Serve an empty store to clients that connect after this call."""
        self._backend = StoreBackend(Store())

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _serve(self._peers, reader, writer, self._backend)


async def _serve(
    peers: LoopbackPeers,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    backend: Backend,
) -> None:
    """Serve a client, if its user may connect."""
    if not peers.admit(writer):
        writer.close()
        return
    with contextlib.suppress(asyncio.CancelledError):  # the agent ends
        await serve_client(reader, writer, backend)


class _Backend:
    def __init__(self, link: ServiceConnection, used: Callable[[str], None]) -> None:
        self._link = link
        self._membership = link.membership
        self._used = used

    async def execute(self, request: Request) -> bytes:
        """Return the reply of the service; raise OSError if the membership is superseded."""
        self._used(self._membership)
        return await self._link.execute(request, self._membership)
