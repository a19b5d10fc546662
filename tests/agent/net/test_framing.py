"""A connection rejects bytes that are no message, a recorded handshake, and a changed frame."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from ddpjob_agent.net.framing import (
    MAGIC,
    MAX_FRAME_BYTES,
    TAG_BYTES,
    Connection,
    FrameKeys,
    FramingError,
    WrongKeyError,
    _tag,
    accept,
    connect,
)
from support.keys import ANOTHER_KEY, KEY, credential

KEYS = FrameKeys(b"of what is sent", b"of what is received")
PATIENCE_SECONDS = 60.0


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
            theirs.sendall(length.to_bytes(4, "big") + data + _tag(KEYS.receive, 0, data))
        connection = Connection(*await asyncio.open_connection(sock=ours), KEYS)
        try:
            with pytest.raises(FramingError, match=why):
                await connection.receive()
        finally:
            connection.close()

    asyncio.run(body())


def frames(*messages: object) -> list[bytes]:
    """Return what the peer sends for these messages."""
    found = []
    for number, message in enumerate(messages):
        data = json.dumps(message).encode()
        found.append(len(data).to_bytes(4, "big") + data + _tag(KEYS.receive, number, data))
    return found


ONE, TWO, THREE = frames({"type": "halt"}, {"type": "run"}, {"type": "finish"})


@pytest.mark.parametrize(
    ("sent", "known"),
    [
        pytest.param(ONE + TWO + THREE, ["halt", "run", "finish"], id="all"),
        pytest.param(ONE + TWO.replace(b"run", b"ruN"), ["halt"], id="changed"),
        pytest.param(ONE + ONE, ["halt"], id="repeated"),
        pytest.param(ONE + THREE, ["halt"], id="left_out"),
        pytest.param(TWO + ONE, [], id="exchanged"),
        pytest.param(ONE[:-TAG_BYTES] + bytes(TAG_BYTES), [], id="without_a_code"),
        pytest.param(
            ONE[:-TAG_BYTES] + _tag(KEYS.send, 0, ONE[4:-TAG_BYTES]), [], id="of_this_side"
        ),
    ],
)
def test_a_frame_counts_as_the_peer_has_sent_it_and_at_its_place(
    sent: bytes, known: list[str]
) -> None:
    async def body() -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            theirs.sendall(sent)
        connection = Connection(*await asyncio.open_connection(sock=ours), KEYS)
        heard: list[str] = []
        refused = False
        try:
            while (message := await connection.receive()) is not None:
                heard.append(message["type"])
        except FramingError:
            refused = True
        connection.close()
        assert (heard, refused) == (known, len(known) < 3)

    asyncio.run(body())


@contextlib.asynccontextmanager
async def service(
    key_of: Callable[[str], bytes] = KEY.worker,
) -> AsyncIterator[tuple[int, asyncio.Queue[Connection | Exception], list[bytes]]]:
    """Accept agents; yield the port, the outcomes of handshakes and what was read."""
    ends: asyncio.Queue[Connection | Exception] = asyncio.Queue()
    read: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        recorder = Recorder(reader)
        await recorder.readexactly(len(MAGIC))
        try:
            connection = await accept(recorder, writer, key_of)
            read.append(recorder.data)
            await ends.put(connection)
        except (FramingError, WrongKeyError) as error:
            await ends.put(error)
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], ends, read
    finally:
        server.close()


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


def run(body: Awaitable[None]) -> None:
    async def main() -> None:
        await asyncio.wait_for(body, PATIENCE_SECONDS)

    asyncio.run(main())


def test_a_recorded_handshake_is_refused() -> None:
    async def body() -> None:
        async with service() as (port, ends, read):
            (await connect("127.0.0.1", port, credential("a"))).close()
            accepted = await ends.get()
            assert isinstance(accepted, Connection)
            accepted.close()
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(read[0])
            assert isinstance(await ends.get(), WrongKeyError)
            writer.close()

    run(body())


def test_both_sides_talk_and_the_service_knows_to_whom() -> None:
    async def body() -> None:
        async with service() as (port, ends, _):
            agent = await connect("127.0.0.1", port, credential("digits-worker-000-1"))
            other = await ends.get()
            assert isinstance(other, Connection)
            assert other.peer == "digits-worker-000-1"
            for sender, receiver in ((agent, other), (other, agent)):
                for number in range(3):
                    sender.send({"type": "halt", "n": number})
                    assert await receiver.receive() == {"type": "halt", "n": number}
            agent.close()
            other.close()

    run(body())


def test_a_worker_does_not_get_in_as_another_worker() -> None:
    async def body() -> None:
        async with service(lambda _: KEY.worker("b")) as (port, _, _), service() as (real, ends, _):
            with pytest.raises(WrongKeyError, match="does not know the key of a"):
                await connect("127.0.0.1", port, credential("a"))
            with pytest.raises(WrongKeyError):
                await connect("127.0.0.1", real, credential("b")._replace(name="a"))
            assert isinstance(await ends.get(), Exception)

    run(body())


def test_the_service_of_another_job_is_not_believed() -> None:
    async def body() -> None:
        async with service(ANOTHER_KEY.worker) as (port, _, _):
            with pytest.raises(WrongKeyError):
                await connect("127.0.0.1", port, credential("a"))

    run(body())
