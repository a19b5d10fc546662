"""Transfers replicas between agents, over connections that prove the workers' key.

    client  {"type": "give", "digest": …}
    server  {"type": "copy", "parts": […]}, then the bytes of all parts; or {"type": "absent"}

The client verifies every byte, and reads no more bytes than the list of files announces. Threads
read and write the disk, one chunk at a time; memory and the event loop stay free.
May not: choose replicas, workers or paths.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from typing import IO, TYPE_CHECKING, Callable

from ddpjob_agent.file_sync.decisions.admission import MalformedError, parse_parts
from ddpjob_agent.file_sync.decisions.replica import FileEntry, Parts, digest_of
from ddpjob_agent.file_sync.disk import places
from ddpjob_agent.file_sync.disk.file_copy import CHUNK_BYTES
from ddpjob_agent.net.framing import (
    HANDSHAKE_SECONDS,
    MAGIC,
    Connection,
    FramingError,
    RejectedError,
    accept,
    connect,
)
from ddpjob_agent.net.sockets.listening import Listener, bind

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterator, Sequence

    from ddpjob_agent.file_sync.disk.places import Place
    from ddpjob_protocol.keys.credentials import Credential
    from ddpjob_protocol.messages.agent import Message

MAX_REQUEST_BYTES = 4096  # a digest
MAX_ANSWER_BYTES = 16 << 20  # a reader of JSON takes up to twenty times the memory of its text
SILENCE_SECONDS = 20.0  # without a byte; then the other agent or its disk has failed

log = logging.getLogger("ddpjob.files")

Source = tuple[Parts, "list[Callable[[], IO[bytes]]]"]  # files, and what opens each


class TransferError(Exception):
    """The other agent cannot be reached, does not have the replica, or has a corrupt one."""


class ReplicaServer:
    """A server that sends replicas to other agents.

    `find` returns the files of a replica; `recheck` is called for a replica that is gone or corrupt.
    """

    def __init__(
        self,
        key: bytes,
        find: Callable[[str], Source | None],
        recheck: Callable[[str], Awaitable[object]],
    ) -> None:
        self._key = key
        self._find = find
        self._recheck = recheck
        self.port = 0

    async def listen(self, address: str) -> None:
        """Listen on a free port of this address, or else of all addresses. Raises OSError."""
        try:
            bound = bind(address, 0)
        except OSError:  # the address is not one of this machine
            bound = bind("", 0)
        self._listener = Listener(bound, self._connected)
        self.port = self._listener.port

    def close(self) -> None:
        """Stop serving."""
        self._listener.close()

    async def _connected(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        authenticated: Callable[[], None],
    ) -> None:
        try:
            first = await reader.readexactly(len(MAGIC))
            if first == MAGIC:
                connection = await accept(reader, writer, lambda _: self._key)
                authenticated()
                request = await asyncio.wait_for(
                    connection.receive(_request_limit), HANDSHAKE_SECONDS
                )
                if request is not None and request["type"] == "give":
                    await self._serve(connection, str(request["digest"]))
        except (FramingError, RejectedError, KeyError) as error:
            log.warning("refused %s: %s", writer.get_extra_info("peername"), error)
        except (asyncio.TimeoutError, asyncio.IncompleteReadError, OSError) as error:
            log.info("a transfer of a replica was cut off: %r", error)
        except asyncio.CancelledError:
            log.debug("the agent ends")
        finally:
            with contextlib.suppress(RuntimeError):  # the loop is closed, as the agent ends
                writer.close()

    async def _serve(self, connection: Connection, digest: str) -> None:
        with contextlib.ExitStack() as stack:
            loop = asyncio.get_running_loop()
            found = await loop.run_in_executor(None, self._open, digest, stack)
            if found is not None and await self._send(connection, *found):
                return
        await self._recheck(digest)
        if found is None:
            connection.send({"type": "absent"})
            await connection.drain()

    def _open(
        self, digest: str, stack: contextlib.ExitStack
    ) -> tuple[Parts, list[IO[bytes]]] | None:
        found = self._find(digest)
        if found is None:
            return None
        try:
            return found[0], [stack.enter_context(opens()) for opens in found[1]]
        except OSError as error:
            log.warning("a copy cannot be read: %s", error)
            return None

    async def _send(self, connection: Connection, parts: Parts, files: list[IO[bytes]]) -> bool:
        """Send a replica; return whether it still matches its digest."""
        connection.send({"type": "copy", "parts": parts})
        for part, file in zip(parts, files):
            if not await self._stream(connection, part, file):
                return False
        return True

    @staticmethod
    async def _stream(connection: Connection, part: FileEntry, file: IO[bytes]) -> bool:
        loop, digest = asyncio.get_running_loop(), hashlib.blake2b(digest_size=16)
        left = part.size
        while data := await loop.run_in_executor(None, _read, file, min(left, CHUNK_BYTES)):
            left -= len(data)
            await loop.run_in_executor(None, digest.update, data)
            await asyncio.wait_for(connection.send_bytes(data), SILENCE_SECONDS)
        return digest.hexdigest() == part.digest


def _request_limit() -> int:
    return MAX_REQUEST_BYTES


def _answer_limit() -> int:
    return MAX_ANSWER_BYTES


def _read(file: IO[bytes], size: int) -> bytes:
    with contextlib.suppress(OSError):
        return file.read(size)
    return b""  # so the digest does not match


async def fetch(
    holder: tuple[str, int],
    key: Credential,
    digest: str,
    stage: Callable[[Parts], Awaitable[Sequence[Place]]],
) -> Parts:
    """Fetch a replica from a holder, into the places that `stage` returns; none: fetch nothing.

    `stage` admits the files or raises RefusedError. Raises TransferError, and OSError if the own
    disk fails.
    """
    with _as_transfer_error():
        connection = await connect(*holder, key)
    try:
        with _as_transfer_error():
            connection.send({"type": "give", "digest": digest})
            answer = await asyncio.wait_for(connection.receive(_answer_limit), SILENCE_SECONDS)
        parts = _announced(answer, digest)
        for part, target in zip(parts, await stage(parts)):
            with places.create(target) as file:
                await _receive(connection, part, file)
    finally:
        connection.close()
    return parts


def _announced(answer: Message | None, digest: str) -> Parts:
    if answer is None or answer["type"] != "copy":
        raise TransferError("it has no such copy")
    try:
        parts = parse_parts(answer.get("parts"))
    except MalformedError as error:
        raise TransferError(str(error)) from error
    if digest_of(parts) != digest:
        raise TransferError("it offers another copy")
    return parts


async def _receive(connection: Connection, part: FileEntry, file: IO[bytes]) -> None:
    loop, left, digest = asyncio.get_running_loop(), part.size, hashlib.blake2b(digest_size=16)
    while left > 0:
        with _as_transfer_error():
            receiving = connection.receive_bytes(min(left, CHUNK_BYTES))
            data = await asyncio.wait_for(receiving, SILENCE_SECONDS)
        if not data:
            raise TransferError(f"{part.name} came to {part.size - left} of {part.size} bytes")
        left -= len(data)
        digest.update(data)
        await loop.run_in_executor(None, file.write, data)
    if digest.hexdigest() != part.digest:
        raise TransferError(f"{part.name} is not what it was when it was copied")


@contextlib.contextmanager
def _as_transfer_error() -> Iterator[None]:
    try:
        yield
    except asyncio.TimeoutError as error:
        raise TransferError(f"nothing came for {SILENCE_SECONDS:.0f} s") from error
    except (OSError, FramingError, RejectedError, RecursionError) as error:
        raise TransferError(str(error)) from error
