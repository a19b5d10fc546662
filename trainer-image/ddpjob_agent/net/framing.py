"""An authenticated connection of an agent to the rendezvous service or to another agent.

Both sides prove by an HMAC over fresh nonces that they have the key of the agent; the key itself is
never sent. A frame is a big-endian 32-bit length, a JSON text of that number of bytes, and a code of
TAG_BYTES: an HMAC over the number of the frame and its text, with a key of this connection and this
direction. A frame that was changed, repeated, left out or moved ends the connection. A message can
announce plain bytes, which follow its frame; their digest has to be known by then.
The meaning of messages is not known here.
"""

from __future__ import annotations

import asyncio
import hmac
import itertools
import json
import os
import struct
from typing import TYPE_CHECKING, Callable, NamedTuple

from ddpjob_agent.net.sockets.tcp_info import TcpInfo, read_tcp_info
from ddpjob_protocol.text import excerpt

if TYPE_CHECKING:
    from ddpjob_protocol.keys.credentials import Credential
    from ddpjob_protocol.messages.agent import Message

MAGIC = b"DDPJ2"
NONCE_BYTES = 16
PROOF_BYTES = 32
TAG_BYTES = 16
MAX_FRAME_BYTES = 64 << 20
MAX_REASON = 500  # characters
HANDSHAKE_SECONDS = 10.0
SERVICE, AGENT = b"service", b"agent"


class RejectedError(Exception):
    """The peer rejects this side permanently."""


class WrongKeyError(RejectedError):
    """The peer does not have the key that it should have."""


class FramingError(Exception):
    """The peer does not follow this protocol."""

    def __init__(self, reason: str) -> None:
        """`reason` may repeat what the peer has sent, so it is cut."""
        super().__init__(excerpt(reason, MAX_REASON))


class FrameKeys(NamedTuple):
    """The keys of one connection, one for each direction."""

    send: bytes
    receive: bytes

    @classmethod
    def of(cls, key: bytes, transcript: bytes, own: bytes) -> FrameKeys:
        """Return the keys that follow from a handshake; `own` is SERVICE or AGENT."""
        keys = [_code(key, b"frames of " + side, transcript) for side in (SERVICE, AGENT)]
        return cls(*keys) if own == SERVICE else cls(*reversed(keys))


class Connection:
    """A connection for messages and plain bytes. One task receives; any task may send."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        keys: FrameKeys,
        peer: str = "",
    ) -> None:
        """`peer` is the name that an agent has proved."""
        self.peer = peer
        self._reader = reader
        self._writer = writer
        self._draining = asyncio.Lock()  # before Python 3.11, two tasks may not drain at once
        self._keys = keys
        self._sent = itertools.count()
        self._received = itertools.count()

    def send(self, message: Message) -> None:
        """Queue a message. If the connection is closed, the message is lost without an error."""
        self.send_json(json.dumps(message, separators=(",", ":")).encode())

    def send_json(self, data: bytes) -> None:
        """Queue a message that is encoded already."""
        tag = _tag(self._keys.send, next(self._sent), data)
        self._writer.write(b"".join((struct.pack(">I", len(data)), data, tag)))

    async def drain(self) -> None:
        """Wait until the peer accepts the queued bytes."""
        async with self._draining:
            await self._writer.drain()

    async def receive(self, most: Callable[[], int] = lambda: MAX_FRAME_BYTES) -> Message | None:
        """Return the next message, or None if the connection is closed; raise FramingError.

        `most` returns the limit for the bytes of the message, once they are announced.
        """
        try:
            (length,) = struct.unpack(">I", await self._reader.readexactly(4))
            if length > most():
                raise FramingError(f"a frame of {length} bytes, not {most()} at most")
            data = await self._reader.readexactly(length)
            tag = await self._reader.readexactly(TAG_BYTES)
            if not hmac.compare_digest(tag, _tag(self._keys.receive, next(self._received), data)):
                raise FramingError("a frame that the peer has not sent, or not at this place")
            message = json.loads(data)
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


def _code(key: bytes, purpose: bytes, transcript: bytes) -> bytes:
    return hmac.digest(key, purpose + b"\0" + transcript, "sha256")


def _tag(key: bytes, number: int, data: bytes) -> bytes:
    code = hmac.new(key, struct.pack(">Q", number), "sha256")
    code.update(data)
    return code.digest()[:TAG_BYTES]


async def connect(
    host: str, port: int, credential: Credential, timeout: float = HANDSHAKE_SECONDS
) -> Connection:
    """Open a connection to the service; raise OSError, WrongKeyError or FramingError.

    `timeout` is the timeout in seconds of connection and handshake together.
    """
    task = asyncio.ensure_future(_connect(host, port, credential))
    # Not wait_for: before Python 3.12 it may swallow a cancellation.
    try:
        await asyncio.wait({task}, timeout=timeout)
    except asyncio.CancelledError:
        task.add_done_callback(_close)
        raise
    finally:
        task.cancel()
    if not task.done():
        raise FramingError(f"no answer within {timeout:.0f} s")
    return task.result()


def _close(task: asyncio.Task[Connection]) -> None:
    """Close a connection whose opener was cancelled."""
    if not task.cancelled() and task.exception() is None:
        task.result().close()


async def _connect(host: str, port: int, credential: Credential) -> Connection:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        name, key = credential.name.encode("ascii"), credential.key
        first = os.urandom(NONCE_BYTES) + bytes([len(name)]) + name
        writer.write(MAGIC + first)
        head = await reader.readexactly(len(MAGIC))
        if head != MAGIC:
            raise FramingError(f"not a rendezvous service: the peer answered {head!r}")
        answer = await reader.readexactly(NONCE_BYTES + PROOF_BYTES)
        transcript = first + answer[:NONCE_BYTES]
        if not hmac.compare_digest(answer[NONCE_BYTES:], _code(key, SERVICE, transcript)):
            raise WrongKeyError(
                f"the rendezvous service does not know the key of {credential.name}"
            )
        writer.write(_code(key, AGENT, transcript))
    except asyncio.IncompleteReadError as error:
        writer.close()
        raise FramingError("the peer closed the connection during the handshake") from error
    except BaseException:
        writer.close()
        raise
    return Connection(reader, writer, FrameKeys.of(key, transcript, AGENT))


async def accept(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key_of: Callable[[str], bytes]
) -> Connection:
    """Do the service's half, after MAGIC was read; raise WrongKeyError or FramingError.

    `key_of` returns the key of the agent of a name.
    """
    try:
        first = await reader.readexactly(NONCE_BYTES + 1)
        first += await reader.readexactly(first[-1])
        name = first[NONCE_BYTES + 1 :].decode("ascii")
        own_nonce = os.urandom(NONCE_BYTES)
        key, transcript = key_of(name), first + own_nonce
        writer.write(MAGIC + own_nonce + _code(key, SERVICE, transcript))
        proof = await reader.readexactly(PROOF_BYTES)
    except asyncio.IncompleteReadError as error:
        raise FramingError("the peer closed the connection during the handshake") from error
    except UnicodeDecodeError as error:
        raise FramingError("the name of the agent is not ASCII") from error
    if not hmac.compare_digest(proof, _code(key, AGENT, transcript)):
        raise WrongKeyError(f"the agent does not have the key of {name!r}")
    return Connection(reader, writer, FrameKeys.of(key, transcript, SERVICE), name)
