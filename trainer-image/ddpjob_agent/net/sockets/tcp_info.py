"""The kernel's view of a TCP connection: whether the other host acknowledges what is sent.

The other host's kernel acknowledges data for a process that is stopped or starved, too. So data
without an acknowledgement mean a host, or a network, that is gone.

The offsets are those of `struct tcp_info` in Linux' include/uapi/linux/tcp.h, which only grows.
"""

from __future__ import annotations

import dataclasses
import socket
import struct
from typing import Protocol

TCP_INFO = getattr(socket, "TCP_INFO", 11)
UNACKED_AT, LAST_DATA_RECV_AT, LAST_ACK_RECV_AT = 24, 52, 56  # each 32 bits; milliseconds
SIZE = 60


class Socket(Protocol):
    """A socket, or asyncio's view of one."""

    def getsockopt(self, level: int, optname: int, buflen: int, /) -> bytes:
        """Return the value of an option."""


@dataclasses.dataclass(frozen=True)
class TcpInfo:
    """The state of one direction of a connection."""

    unacknowledged: bool  # data were sent that the other host has not acknowledged
    silence: float  # seconds since the other host acknowledged or sent anything


def read_tcp_info(sock: Socket) -> TcpInfo | None:
    """Return the state of a connection, or None where the kernel does not report it."""
    try:
        data = sock.getsockopt(socket.IPPROTO_TCP, TCP_INFO, SIZE)
    except OSError:
        return None
    if len(data) < SIZE:
        return None
    unacked, received, acked = (
        struct.unpack_from("=I", data, at)[0]
        for at in (UNACKED_AT, LAST_DATA_RECV_AT, LAST_ACK_RECV_AT)
    )
    return TcpInfo(unacked > 0, min(received, acked) / 1000)
