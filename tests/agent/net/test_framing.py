"""A connection rejects bytes that are no message."""

from __future__ import annotations

import asyncio
import socket

import pytest

from ddpjob_agent.net.framing import MAX_FRAME_BYTES, Connection, FramingError


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
