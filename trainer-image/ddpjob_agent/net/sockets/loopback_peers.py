"""The users behind loopback connections: every user of a machine can connect to a loopback port.

The kernel lists each TCP connection with the user of its process. A connection that the process has
closed has no user any more, so only an established one is accepted. May not: know what is served.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import struct
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import asyncio

TABLES = ("/proc/net/tcp", "/proc/net/tcp6")  # torch connects to IPv4 by a socket of IPv6
IN_IPV6 = "".join(f"{word:08X}" for word in struct.unpack("=3I", bytes(10) + b"\xff\xff"))
ESTABLISHED, LISTENING = "01", "0A"

log = logging.getLogger("ddpjob.loopback")


class Entry(NamedTuple):
    """One end of a connection."""

    local: str  # address and port, as the kernel writes them
    remote: str
    state: str
    uid: int


class LoopbackPeers:
    """The peers of one listening IPv4 port."""

    def __init__(self, server: asyncio.base_events.Server) -> None:
        """Find out whether the kernel lists connections; a sandbox may not."""
        own = kernel_address(*server.sockets[0].getsockname())
        self._is_listed = any(e.local == own and e.state == LISTENING for e in read_tables())
        if not self._is_listed:
            log.warning(
                "%s does not list the connections of this machine, so the users of its loopback ports "
                "are not checked", TABLES[0],
            )  # fmt: skip

    def admit(self, writer: asyncio.StreamWriter) -> bool:
        """Return whether a process of this agent's user or of root has connected; log another one."""
        if not self._is_listed:
            return True
        peer = kernel_address(*writer.get_extra_info("peername"))
        own = kernel_address(*writer.get_extra_info("sockname"))
        uid = uid_of(read_tables(), peer, own)
        if uid in (0, os.geteuid()):
            return True
        who = "a process that has ended" if uid is None else f"user {uid}"
        log.warning(
            "refused a loopback connection of %s: only processes of user %d, which runs this agent, and "
            "of root may connect. Run the command as that user", who, os.geteuid(),
        )  # fmt: skip
        return False


def uid_of(entries: list[Entry], peer: str, own: str) -> int | None:
    """Return the user of the established connection from `peer` to `own`, or None."""
    found = (e.uid for e in entries if (e.local, e.remote, e.state) == (peer, own, ESTABLISHED))
    return next(found, None)


def read_tables(paths: tuple[str, ...] = TABLES) -> list[Entry]:
    """Return the TCP connections of this machine over IPv4; none if the kernel lists none."""
    entries: list[Entry] = []
    for path in paths:
        with contextlib.suppress(OSError, ValueError, IndexError), Path(path).open() as lines:
            next(lines)
            for line in lines:
                fields = line.replace(IN_IPV6, "").split()
                entries.append(Entry(fields[1], fields[2], fields[3], int(fields[7])))
    return entries


def kernel_address(host: str, port: int) -> str:
    """Return an IPv4 address and port as the kernel writes them."""
    (number,) = struct.unpack("=I", socket.inet_aton(host))
    return f"{number:08X}:{port:04X}"
