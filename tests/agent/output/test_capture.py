"""The output of a rank reaches the log and the screen, with its rank."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ddpjob_agent.output import streams
from ddpjob_agent.output.capture import OutputCapture
from ddpjob_agent.output.log_writer import LOG

PRINTS = r"import sys; sys.stdout.write(f'out {sys.argv}\n'); sys.stderr.write('err\n')"
OUT = "out ['-c', 'a b']\n"


async def run_rank(capture: OutputCapture, environment: dict[str, str]) -> None:
    """Start local rank 1 as torchrun would, and wait for its end."""
    given = {**os.environ, **environment, "LOCAL_RANK": "1", "RANK": "3"}
    rank = await asyncio.create_subprocess_exec(
        environment[streams.ENV_PYTHON], "-c", PRINTS, "a b", env=given, stdin=subprocess.DEVNULL
    )
    assert await rank.wait() == 0
    capture.drain()


def test_rank_of_a_line(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """The rank that torchrun assigned; in live mode counted from the first rank of the worker."""

    async def body() -> list[dict[str, Any]]:
        received: list[dict[str, Any]] = []
        gone = asyncio.Event()

        async def read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while line := await reader.readline():
                received.append(json.loads(line))
            writer.close()
            await writer.wait_closed()
            gone.set()

        server = await asyncio.start_unix_server(read, tmp_path / "screen")
        capture = OutputCapture(processes=2)
        await capture.connect(str(tmp_path / "screen"), "w")
        argv = ["torchrun", "train.py"]
        environment = dict(capture.prepare(argv, {}, sys.executable, str(tmp_path)))
        for descriptor in capture.open():
            assert descriptor is not None
            os.close(descriptor)
        for first in (0, None, 4):
            capture.set_first_rank(first)
            await run_rank(capture, environment)
        assert capture.stderr_tail == b"err\n" * 3
        capture.close()
        await capture.disconnect()
        await gone.wait()
        server.close()
        return received

    received = asyncio.run(asyncio.wait_for(body(), 60))
    assert LOG.flush()
    texts = [each for each in received if "text" in each]
    for stream, text in (("out", OUT), ("err", "err\n")):
        found = [(each["rank"], each["first"]) for each in texts if each["stream"] == stream]
        assert found == [(3, False), (None, True), (7, False)]
        assert {each["text"] for each in texts if each["stream"] == stream} == {text}
    assert received[0] == {"worker": "w"}
    assert received[-1] == {"end": True}
    printed = capfdbinary.readouterr()
    assert printed.out == OUT.encode() * 3
    assert printed.err == b"err\n" * 3


def test_without_a_screen_only_stderr_passes_through_the_agent(tmp_path: Path) -> None:
    async def body() -> None:
        capture = OutputCapture(processes=2)
        assert capture.prepare(["torchrun", "train.py"], {}, sys.executable, str(tmp_path)) == {}
        out, err = capture.open()
        assert out is None
        os.close(err)
        capture.close()

    asyncio.run(body())
    assert not list(tmp_path.iterdir())
