"""An authenticated connection of an agent to the rendezvous service or to another agent.

Both sides prove that they know the job's token by an HMAC over fresh nonces; the token itself
is never sent. A frame is a big-endian 32-bit length and a JSON text of that number of bytes. A
message can announce plain bytes, which follow its frame. The meaning of messages is not known here.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import struct
from typing import TYPE_CHECKING

from ddpjob_agent.net.tcp_info import TcpInfo, read_tcp_info

if TYPE_CHECKING:
    from ddpjob_protocol.messages import Message

MAGIC = b"DDPJ1"
NONCE_BYTES = 16
PROOF_BYTES = 32
MAX_FRAME_BYTES = 64 << 20
HANDSHAKE_SECONDS = 10.0


class RejectedError(Exception):
    """The peer rejects this side permanently."""


class WrongTokenError(RejectedError):
    """The peer does not know this job's token."""


class FramingError(Exception):
    """The peer does not follow this protocol."""


class Connection:
    """A connection for messages and plain bytes. One task receives; any task may send."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._draining = asyncio.Lock()  # before Python 3.11, two tasks may not drain at once

    def send(self, message: Message) -> None:
        """Queue a message. If the connection is closed, the message is lost without an error."""
        self.send_json(json.dumps(message, separators=(",", ":")).encode())

    def send_json(self, data: bytes) -> None:
        """Queue a message that is encoded already."""
        self._writer.write(struct.pack(">I", len(data)) + data)

    async def drain(self) -> None:
        """Wait until the peer accepts the queued bytes."""
        async with self._draining:
            await self._writer.drain()

    async def receive(self) -> Message | None:
        """Return the next message, or None if the connection is closed; raise FramingError."""
        try:
            (length,) = struct.unpack(">I", await self._reader.readexactly(4))
            if length > MAX_FRAME_BYTES:
                raise FramingError(f"a frame of {length} bytes")
            message = json.loads(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        except (RecursionError, ValueError) as error:
            raise FramingError(f"not JSON: {error}") from error
        if not isinstance(message, dict) or not isinstance(message.get("type"), str):
            raise FramingError("a message without a type")
        return message

    async def send_bytes(self, data: bytes) -> None:
        """Send plain bytes at the rate of the peer; raise ConnectionError if it is gone."""
        self._writer.write(data)
        await self._writer.drain()

    async def receive_bytes(self, limit: int) -> bytes:
        """Return the next plain bytes, b"" if the connection is closed; raise ConnectionError."""
        return await self._reader.read(limit)

    def tcp_info(self) -> TcpInfo | None:
        """Return what the kernel knows of the connection, if it is open."""
        return read_tcp_info(self._writer.get_extra_info("socket"))

    def close(self) -> None:
        """Close without waiting."""
        self._writer.close()


def _proof(token: str, side: bytes, nonces: bytes) -> bytes:
    return hmac.digest(token.encode(), side + nonces, "sha256")


async def connect(
    host: str, port: int, token: str, timeout: float = HANDSHAKE_SECONDS
) -> Connection:
    """Open a connection to the service; raise OSError, WrongTokenError or FramingError.

    `timeout` is the timeout in seconds of connection and handshake together.
    """
    task = asyncio.ensure_future(_connect(host, port, token))
    # Not wait_for: before Python 3.12 it may swallow a cancellation.
    try:
        await asyncio.wait({task}, timeout=timeout)
    finally:
        task.cancel()
    if not task.done():
        raise FramingError(f"no answer within {timeout:.0f} s")
    return task.result()


async def _connect(host: str, port: int, token: str) -> Connection:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        own_nonce = os.urandom(NONCE_BYTES)
        writer.write(MAGIC + own_nonce)
        head = await reader.readexactly(len(MAGIC))
        if head != MAGIC:
            raise FramingError(f"not a rendezvous service: the peer answered {head!r}")
        answer = await reader.readexactly(NONCE_BYTES + PROOF_BYTES)
        nonces = own_nonce + answer[:NONCE_BYTES]
        if not hmac.compare_digest(answer[NONCE_BYTES:], _proof(token, b"service", nonces)):
            raise WrongTokenError("the rendezvous service does not know this job's token")
        writer.write(_proof(token, b"agent", nonces))
    except asyncio.IncompleteReadError as error:
        writer.close()
        raise FramingError("the peer closed the connection during the handshake") from error
    except BaseException:
        writer.close()
        raise
    return Connection(reader, writer)


async def accept(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: str
) -> Connection:
    """Do the service's half, after MAGIC was read; raise WrongTokenError or FramingError."""
    try:
        other_nonce = await reader.readexactly(NONCE_BYTES)
        own_nonce = os.urandom(NONCE_BYTES)
        nonces = other_nonce + own_nonce
        writer.write(MAGIC + own_nonce + _proof(token, b"service", nonces))
        proof = await reader.readexactly(PROOF_BYTES)
    except asyncio.IncompleteReadError as error:
        raise FramingError("the peer closed the connection during the handshake") from error
    if not hmac.compare_digest(proof, _proof(token, b"agent", nonces)):
        raise WrongTokenError("the agent does not know this job's token")
    return Connection(reader, writer)
