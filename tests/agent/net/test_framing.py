"""A connection rejects bytes that are no message, and a handshake that was recorded."""

from __future__ import annotations

import asyncio
import socket

import pytest

from ddpjob_agent.net.framing import (
    MAGIC,
    MAX_FRAME_BYTES,
    Connection,
    FramingError,
    WrongTokenError,
    accept,
    connect,
)

TOKEN = "the token of this job"


@pytest.mark.parametrize(
    ("length", "data", "why"),
    [
        pytest.param(MAX_FRAME_BYTES + 1, b"{}", "bytes", id="too long"),
        pytest.param(4, b"{...", "not JSON", id="not JSON"),
        pytest.param(2, b"{}", "without a type", id="without a type"),
        pytest.param(2, b"[]", "without a type", id="a list"),
        pytest.param(100_000, b"[" * 100_000, "not JSON", id="deep"),
    ],
)
def test_what_is_no_message_is_refused(length: int, data: bytes, why: str) -> None:
    async def body() -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            theirs.sendall(length.to_bytes(4, "big") + data)
        connection = Connection(*await asyncio.open_connection(sock=ours))
        try:
            with pytest.raises(FramingError, match=why):
                await connection.receive()
        finally:
            connection.close()

    asyncio.run(body())


class Recorder(asyncio.StreamReader):
    """A reader that keeps what was read."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        super().__init__()
        self._reader = reader
        self.data = b""

    async def readexactly(self, n: int) -> bytes:
        data = await self._reader.readexactly(n)
        self.data += data
        return data


def test_a_recorded_handshake_is_refused() -> None:
    async def body() -> None:
        ends: asyncio.Queue[bytes | WrongTokenError] = asyncio.Queue()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            recorder = Recorder(reader)
            await recorder.readexactly(len(MAGIC))
            try:
                await accept(recorder, writer, TOKEN)
                await ends.put(recorder.data)
            except WrongTokenError as error:
                await ends.put(error)
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        (await connect("127.0.0.1", port, TOKEN)).close()
        recorded = await ends.get()
        assert isinstance(recorded, bytes)
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(recorded)
        assert isinstance(await ends.get(), WrongTokenError)
        writer.close()
        server.close()

    asyncio.run(body())
