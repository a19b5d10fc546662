"""An odd message of a live process is refused; the connection and its later messages count."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from ddpjob_agent.worker.processes.live_processes import LiveProcesses

if TYPE_CHECKING:
    from pathlib import Path

ODD: tuple[object, ...] = (
    5,
    [],
    {"answer": "applause", "local_rank": 0},
    {"answer": "promise", "local_rank": "first", "step": 1},
    {"answer": "promise", "local_rank": 0, "step": 1e999},
    {"answer": "promise", "local_rank": 0},
    {"answer": "entered", "local_rank": 0, "membership": "soon"},
    {"answer": "broken", "local_rank": 0, "membership": "1.1.1", "why": [1]},
    {"answer": "stops", "local_rank": 0, "membership": "1.1.1", "rank": -1},
    {"answer": "at", "local_rank": 0, "line": 7, "where": ""},
    json.loads("[" * 300 + "]" * 300),
)


@pytest.mark.parametrize("odd", ODD, ids=lambda each: str(each)[:50])
def test_the_connection_lives_on(tmp_path: Path, odd: object) -> None:
    sent: list[dict[str, Any]] = []

    async def body() -> None:
        ready = asyncio.Event()

        def send(message: dict[str, Any]) -> None:
            sent.append(message)
            if message["type"] == "ready":
                ready.set()

        live = LiveProcesses(1, send, lambda _: None, lambda _: None)
        await live.listen(str(tmp_path / "socket"))
        _, writer = await asyncio.open_unix_connection(tmp_path / "socket")
        for message in (odd, odd, {"answer": "hello", "local_rank": 0}):
            writer.write(json.dumps(message).encode() + b"\n")
        await ready.wait()
        writer.close()
        live.close()

    asyncio.run(asyncio.wait_for(body(), 60))
    assert [each["type"] for each in sent] == ["warning", "ready"], "once"
    assert sent[0]["reason"] == "InvalidReport"
