"""The bytes that the TCP connections of this process have carried, as the kernel counts them."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from pathlib import Path

_ACKED, _RECEIVED = 120, 128  # offsets in the kernel's struct tcp_info


def bytes_with(port: int) -> int:
    """Return the bytes sent to and received from a port of this machine."""
    total = 0
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if not str(link.readlink()).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(link.name))) as connection:
                is_tcp = connection.family in (socket.AF_INET, socket.AF_INET6)
                if is_tcp and connection.getpeername()[1] == port:
                    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                    for offset in (_ACKED, _RECEIVED):
                        total += struct.unpack_from("<Q", info, offset)[0]
    return total
