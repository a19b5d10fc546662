"""One authenticated connection, of an agent to the rendezvous service or another agent: JSON in frames.

Both sides prove that they know the job's token by an HMAC over fresh nonces; the token itself
never travels. A frame is a big-endian 32-bit length and that many bytes of JSON; after one that
says so come plain bytes. Knows nothing of what the messages mean.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddpjob_protocol.messages import Message

MAGIC = b"DDPJ1"
NONCE_BYTES = 16
PROOF_BYTES = 32
MAX_FRAME_BYTES = 64 << 20
HANDSHAKE_SECONDS = 10.0


class RejectedError(Exception):
    """The other side will never talk to us."""


class WrongTokenError(RejectedError):
    """The other side does not know this job's token."""


class FramingError(Exception):
    """The other side does not speak this protocol."""


class Connection:
    """Sends and receives messages; one task receives, any may send."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, message: Message) -> None:
        """Queue a message; what a closed connection swallows is the caller's to send again."""
        data = json.dumps(message, separators=(",", ":")).encode()
        self._writer.write(struct.pack(">I", len(data)) + data)

    async def drain(self) -> None:
        """Wait until the peer takes what was sent."""
        await self._writer.drain()

    async def receive(self) -> Message | None:
        """The next message, None when the connection is closed."""
        try:
            (length,) = struct.unpack(">I", await self._reader.readexactly(4))
            if length > MAX_FRAME_BYTES:
                raise FramingError(f"a frame of {length} bytes")
            message = json.loads(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        except ValueError as error:
            raise FramingError(f"not JSON: {error}") from error
        if not isinstance(message, dict) or not isinstance(message.get("type"), str):
            raise FramingError("a message without a type")
        return message

    async def send_bytes(self, data: bytes) -> None:
        """Send plain bytes, as fast as the peer takes them; raises ConnectionError."""
        self._writer.write(data)
        await self._writer.drain()

    async def receive_bytes(self, limit: int) -> bytes:
        """Some plain bytes, none when the connection is closed; raises ConnectionError."""
        return await self._reader.read(limit)

    def close(self) -> None:
        """Close without waiting."""
        self._writer.close()


def _proof(token: str, side: bytes, nonces: bytes) -> bytes:
    return hmac.digest(token.encode(), side + nonces, "sha256")


async def connect(
    host: str, port: int, token: str, patience: float = HANDSHAKE_SECONDS
) -> Connection:
    """Open a connection to the service; raises OSError, WrongTokenError or WireError.

    `patience` in seconds, for all of it.
    """
    task = asyncio.ensure_future(_connect(host, port, token))
    # not wait_for: before Python 3.12 it may swallow a cancellation
    try:
        await asyncio.wait({task}, timeout=patience)
    finally:
        task.cancel()
    if not task.done():
        raise FramingError(f"no answer within {patience:.0f} s")
    return task.result()


async def _connect(host: str, port: int, token: str) -> Connection:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        mine = os.urandom(NONCE_BYTES)
        writer.write(MAGIC + mine)
        head = await reader.readexactly(len(MAGIC))
        if head != MAGIC:
            raise FramingError(f"no rendezvous service answers there, but what says {head!r}")
        answer = await reader.readexactly(NONCE_BYTES + PROOF_BYTES)
        nonces = mine + answer[:NONCE_BYTES]
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
    """The service's half, after MAGIC was read; raises WrongTokenError or WireError."""
    try:
        theirs = await reader.readexactly(NONCE_BYTES)
        mine = os.urandom(NONCE_BYTES)
        nonces = theirs + mine
        writer.write(MAGIC + mine + _proof(token, b"service", nonces))
        proof = await reader.readexactly(PROOF_BYTES)
    except asyncio.IncompleteReadError as error:
        raise FramingError("the peer closed the connection during the handshake") from error
    if not hmac.compare_digest(proof, _proof(token, b"agent", nonces)):
        raise WrongTokenError("the agent does not know this job's token")
    return Connection(reader, writer)
