"""A client of a c10d store for programs without torch: the operations that `mpi_helpers` needs.

May not: reconnect; if the store closes the connection, the client raises OSError.
"""

from __future__ import annotations

import socket
import struct

from ddpjob_agent.c10d.protocol import MAGIC, Op, encode_bytes, encode_integer
from ddpjob_protocol.addresses import split_address


class StoreClient:
    """A connection to a store, which answers requests in their order."""

    def __init__(self, address: str) -> None:
        self._socket = socket.create_connection(split_address(address))
        self._socket.sendall(struct.pack("<BI", Op.VALIDATE, MAGIC))

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def set(self, key: str, value: str) -> None:
        """Set a key; return when the value is visible to other clients."""
        self._send(Op.SET, encode_bytes(key.encode()) + encode_bytes(value.encode()))
        self.get(key)  # SET has no answer

    def get(self, key: str) -> str:
        """Return the value of a key; wait until there is one."""
        self._send(Op.WAIT, encode_integer(1) + encode_bytes(key.encode()))
        self._receive(1)
        self._send(Op.GET, encode_bytes(key.encode()))
        (length,) = struct.unpack("<Q", self._receive(8))
        return self._receive(length).decode()

    def add(self, key: str, number: int) -> int:
        """Add to the number of a key, initially 0; return the sum."""
        self._send(Op.ADD, encode_bytes(key.encode()) + encode_integer(number))
        (total,) = struct.unpack("<q", self._receive(8))
        return int(total)

    def _send(self, op: Op, arguments: bytes) -> None:
        self._socket.sendall(bytes([op]) + arguments)

    def _receive(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            part = self._socket.recv(size - len(found))
            if not part:
                raise ConnectionError("the store has closed the connection")
            found += part
        return bytes(found)
