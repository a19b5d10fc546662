"""The TCP sockets of this process, and those of them that connect it with the ranks of its group.

A group's sockets are found by their addresses. A rank knows the listeners that it opened while the
group formed, and learns those of the other ranks. A connection is the group's if it leads to such a
listener. Other threads may open sockets meanwhile; those stay untouched.
"""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

Address = tuple[str, int]  # IP address and port


def find_sockets() -> dict[int, int]:
    """Return the inode number and descriptor of each socket of this process."""
    return dict(_list_sockets())


def listeners(sockets: Mapping[int, int]) -> list[Address]:
    """Return the addresses of the listeners among these sockets."""
    return [local for _, local, peer in _ends(sockets) if peer is None]


def connections_to(
    sockets: Mapping[int, int], own: Collection[Address], others: Collection[Address]
) -> frozenset[int]:
    """Return the inode numbers of connections with other ranks.

    `own` are the listeners of this rank, `others` those of all other ranks.
    """
    ends = [end for end in _ends(sockets) if end[2] is not None]
    here = {local for _, local, _ in ends}  # a connection of this process with itself has two ends
    hosts = {host for host, _ in others}
    return frozenset(
        inode
        for inode, local, peer in ends
        if peer is not None
        and peer not in here
        and (peer in others or (local in own and peer[0] in hosts))
    )


def duplicate(descriptor: int) -> socket.socket | None:
    """Duplicate another owner's TCP connection; return None if the owner has closed it.

    The owner may close its descriptor at any time. Other sockets and listeners return None.
    """
    connection = _duplicate_tcp(descriptor)
    if connection is not None and _is_listener(connection):
        connection.close()
        return None
    return connection


def shut_down(connection: socket.socket, how: int) -> None:
    """Shut down a connection; ignore one that the peer has closed."""
    with contextlib.suppress(OSError):
        connection.shutdown(how)


def _list_sockets() -> Iterator[tuple[int, int]]:
    for path in Path("/proc/self/fd").iterdir():
        try:
            target = str(path.readlink())
        except OSError:
            continue
        if target.startswith("socket:["):
            yield int(target[len("socket:[") : -1]), int(path.name)


def _ends(sockets: Mapping[int, int]) -> list[tuple[int, Address, Address | None]]:
    """Return inode number, local address and peer of each TCP socket; a listener has no peer."""
    found: list[tuple[int, Address, Address | None]] = []
    for inode, descriptor in sockets.items():
        copy = _duplicate_tcp(descriptor)
        if copy is None:
            continue
        with copy, contextlib.suppress(OSError):  # a connection without a peer, yet or any more
            peer = None if _is_listener(copy) else _address(copy.getpeername())
            found.append((inode, _address(copy.getsockname()), peer))
    return found


def _address(name: tuple[str, int]) -> Address:
    host, port = name[:2]
    return host.removeprefix("::ffff:"), port


def _duplicate_tcp(descriptor: int) -> socket.socket | None:
    try:
        copy = socket.socket(fileno=os.dup(descriptor))
    except OSError:
        return None
    if copy.family in (socket.AF_INET, socket.AF_INET6) and copy.type == socket.SOCK_STREAM:
        return copy
    copy.close()
    return None


def _is_listener(connection: socket.socket) -> bool:
    return bool(connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
