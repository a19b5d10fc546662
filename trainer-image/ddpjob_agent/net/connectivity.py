"""Checks that the workers of a membership can open connections to each other.

Each agent listens on a port that exchanges no data, and tries the ports of all others when a
membership begins, while the processes start. The check reports only failed connections; no start
waits for the check.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Callable

from ddpjob_agent.net.sockets.listening import Listener, bind
from ddpjob_protocol.messages.warnings import unreachable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ddpjob_protocol.messages.agent import Message
    from ddpjob_protocol.messages.membership import Member, Membership

CONNECT_SECONDS = 5.0
ATTEMPTS = 2  # one packet may be lost
AT_ONCE = 64  # concurrent connections


class ConnectivityCheck:
    """The connectivity check of one worker; `port` is None before `listen`."""

    def __init__(self, send: Callable[[Message], None]) -> None:
        self._send = send
        self._checking: asyncio.Task[None] | None = None
        self._listener: Listener | None = None
        self.port: int | None = None

    async def listen(self, address: str) -> None:
        """Accept connections at the address, if this worker has that address."""
        with contextlib.suppress(OSError):
            self._listener = Listener(bind(address, 0), _close)
            self.port = self._listener.port

    def check(self, membership: Membership, me: Member, ports: Mapping[str, int]) -> None:
        """Cancel the previous check, then try all other members whose ports are known."""
        self._stop()
        others = [each for each in membership.members if each != me and each.worker in ports]
        work = self._check(str(membership.id), others, ports)
        self._checking = asyncio.ensure_future(work)

    def close(self) -> None:
        """Stop the check and accept no more connections."""
        self._stop()
        if self._listener is not None:
            self._listener.close()

    def _stop(self) -> None:
        if self._checking is not None:
            self._checking.cancel()

    async def _check(self, membership: str, others: list[Member], ports: Mapping[str, int]) -> None:
        gate = asyncio.Semaphore(AT_ONCE)
        tries = (_can_connect(each.address, ports[each.worker], gate) for each in others)
        found = await asyncio.gather(*tries)
        missing = [each.worker for each, reached in zip(others, found) if not reached]
        if missing:
            self._send(unreachable(membership, missing).to_message())


async def _can_connect(address: str, port: int, gate: asyncio.Semaphore) -> bool:
    async with gate:
        for _ in range(ATTEMPTS):
            with contextlib.suppress(OSError, asyncio.TimeoutError):
                connecting = asyncio.open_connection(address, port)
                _, writer = await asyncio.wait_for(connecting, CONNECT_SECONDS)
                writer.close()
                return True
    return False


async def _close(
    _: asyncio.StreamReader, writer: asyncio.StreamWriter, _authenticated: Callable[[], None]
) -> None:
    writer.close()
