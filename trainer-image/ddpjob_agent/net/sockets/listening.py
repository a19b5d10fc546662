"""The listener of the service and of the agents, with bounds for peers without a key of the job.

A listener survives a lack of descriptors: it refuses the connections that wait, one at a time.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from typing import TYPE_CHECKING, Any, Callable

from ddpjob_agent.net.sockets.descriptors import DescriptorReserve
from ddpjob_agent.net.sockets.strangers import Strangers

if TYPE_CHECKING:
    from collections.abc import Coroutine

BACKLOG = 1024  # all workers connect at once when the service has restarted
PAUSE_SECONDS = 0.1  # after an error that is not a lack of descriptors
STREAM_BYTES = 16 << 10  # unread bytes from which on a connection is not read; longest line

log = logging.getLogger("ddpjob.net")

# Serves a connection; the third argument is to be called once the peer has proved its key.
Serve = Callable[
    [asyncio.StreamReader, asyncio.StreamWriter, Callable[[], None]], "Coroutine[Any, Any, None]"
]


def bind(host: str, port: int) -> socket.socket:
    """Return a socket bound to a port of an address, or of all if `host` is empty; raise OSError.

    All addresses are those of IPv6 and IPv4, or those of IPv4 on a machine without IPv6.
    """
    if not host:
        host = "::" if socket.has_dualstack_ipv6() else "0.0.0.0"  # noqa: S104 - other pods call it
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    # asyncio sends without delay (TCP_NODELAY) only on sockets that name their protocol
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        bound.bind(address)
    except BaseException:
        bound.close()
        raise
    return bound


class Listener:
    """A listener whose connections `serve` handles, each in a task of its own."""

    def __init__(
        self, bound: socket.socket, serve: Serve, strangers: Strangers | None = None
    ) -> None:
        """Listen on a bound socket, in the running event loop. Raise OSError."""
        try:
            bound.listen(BACKLOG)
        except OSError:
            bound.close()
            raise
        self._socket = bound
        self._serve = serve
        self._strangers = Strangers() if strangers is None else strangers
        self._reserve = DescriptorReserve()
        self._tasks: set[asyncio.Task[None]] = set()
        self._resuming: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self.address: tuple[Any, ...] = bound.getsockname()
        bound.setblocking(False)
        self._resume()

    @property
    def port(self) -> int:
        """The port of this listener."""
        return int(self.address[1])

    def close(self) -> None:
        """Accept no more connections; the open ones remain. A second call changes nothing."""
        if self._socket.fileno() < 0:
            return
        if self._resuming is not None:
            self._resuming.cancel()
        self._loop.remove_reader(self._socket)
        self._socket.close()
        self._reserve.close()

    def _resume(self) -> None:
        self._loop.add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        try:
            connection, _ = self._socket.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            lacks = error.errno in {errno.EMFILE, errno.ENFILE}
            if not lacks or not self._reserve.refuse(self._socket):
                self._loop.remove_reader(self._socket)
                self._resuming = self._loop.call_later(PAUSE_SECONDS, self._resume)
            return
        task = asyncio.ensure_future(self._handle(connection))
        self._tasks.add(task)
        task.add_done_callback(self._handled)

    async def _handle(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        reader, writer = await asyncio.open_connection(sock=connection, limit=STREAM_BYTES)
        self._strangers.add(writer)
        try:
            await self._serve(reader, writer, lambda: self._strangers.remove(writer))
        finally:
            self._strangers.remove(writer)

    def _handled(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a connection was closed by an error", exc_info=task.exception())
