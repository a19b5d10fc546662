"""The report to the service that a live process has done its last step."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from ddpjob_agent.worker.processes.live_processes import LiveProcesses

if TYPE_CHECKING:
    from pathlib import Path

MEMBERSHIPS = ("1.1.9", "1.1.10")


@pytest.mark.parametrize("names_it", [True, False], ids=["names it", "of an older library"])
def test_a_finish_names_the_membership_of_the_last_step(tmp_path: Path, *, names_it: bool) -> None:
    sent: list[dict[str, Any]] = []

    async def body() -> str:
        finished = asyncio.Event()

        def send(message: dict[str, Any]) -> None:
            sent.append(message)
            if sum(each["type"] == "finished" for each in sent) == len(MEMBERSHIPS):
                finished.set()

        live = LiveProcesses(2, send, lambda _: None, lambda _: None)
        await live.listen(str(tmp_path / "socket"))
        writers = []
        for local_rank, membership in enumerate(MEMBERSHIPS):
            _, writer = await asyncio.open_unix_connection(tmp_path / "socket")
            writers.append(writer)
            for words in (
                {"answer": "hello"},
                {"answer": "entered", "membership": membership},
                {"answer": "finished", **({"membership": membership} if names_it else {})},
            ):
                writer.write(json.dumps({**words, "local_rank": local_rank}).encode() + b"\n")
        await finished.wait()
        last = live.finished_in
        for writer in writers:
            writer.close()
        live.close()
        return last

    last = asyncio.run(asyncio.wait_for(body(), 60))
    told = sorted(each["membership"] for each in sent if each["type"] == "finished")
    assert told == sorted(MEMBERSHIPS)
    assert last == "1.1.10", "the newest one"
