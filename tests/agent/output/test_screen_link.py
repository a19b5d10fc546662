"""A screen that does not read costs lines, and neither memory nor time."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from ddpjob_agent.output.screen_link import MAX_WAITING_BYTES, ScreenLink

PIECE = "x" * 65536
PIECES = 4 * MAX_WAITING_BYTES // len(PIECE)


def test_a_slow_screen_gets_the_number_of_bytes_that_were_dropped(tmp_path: Path) -> None:
    async def body() -> tuple[int, int]:
        accepted: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]]
        accepted = asyncio.Queue()
        server = await asyncio.start_unix_server(
            lambda *ends: accepted.put_nowait(ends), tmp_path / "screen", limit=1 << 20
        )
        link = ScreenLink()
        await link.connect(str(tmp_path / "screen"), "w")
        reader, writer = await accepted.get()
        for _ in range(PIECES):
            link.send({"text": PIECE})  # the loop does not run: no task reads
        received = dropped = 0
        assert json.loads(await reader.readline()) == {"worker": "w"}
        while not dropped:
            message = json.loads(await reader.readline())
            received += len(message.get("text", ""))
            dropped += message.get("dropped", 0)
            link.send({"text": ""})
        await link.close()
        writer.close()
        await writer.wait_closed()
        server.close()
        return received, dropped

    received, dropped = asyncio.run(asyncio.wait_for(body(), 60))
    assert received + dropped == PIECES * len(PIECE)
    assert received <= 2 * MAX_WAITING_BYTES, "the kernel holds some, too"


def test_without_a_screen_nothing_is_sent(tmp_path: Path) -> None:
    async def body() -> None:
        link = ScreenLink()
        await link.connect(str(tmp_path / "nothing"), "w")
        assert not link.is_open
        link.send({"text": "x"})
        await link.close()

    asyncio.run(body())
