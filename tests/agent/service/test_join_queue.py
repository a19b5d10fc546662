"""Torchruns join one after another, and none waits for one that has gone."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from ddpjob_agent.service import join_queue
from ddpjob_agent.service.join_queue import JoinQueue

if TYPE_CHECKING:
    from collections.abc import Coroutine

PATIENCE_SECONDS = 60.0


async def settled(queue: JoinQueue, *workers: str) -> list[asyncio.Task[None]]:
    """Return the turns of these workers, as far as they get without the end of another turn."""
    turns = [asyncio.ensure_future(queue.turn(worker)) for worker in workers]
    for _ in range(3):
        await asyncio.sleep(0)
    return turns


def run(body: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(body, PATIENCE_SECONDS))


def test_turns_follow_in_the_order_of_arrival() -> None:
    async def body() -> None:
        queue = JoinQueue()
        turns = await settled(queue, "a", "b", "c", "a")
        assert [turn.done() for turn in turns] == [True, False, False, True], "a may read again"
        queue.end("b")
        assert not turns[1].done(), "only the holder ends its turn"
        queue.end("a")
        await turns[1]
        assert not turns[2].done()
        queue.end("b")
        await turns[2]

    run(body())


def test_a_worker_that_has_gone_holds_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join_queue, "LEASE_SECONDS", 0.01)

    async def body() -> None:
        queue = JoinQueue()
        await asyncio.gather(*(queue.turn(name) for name in "abc"))

    run(body())


def test_a_cancelled_turn_passes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join_queue, "LEASE_SECONDS", 3600.0)

    async def body() -> None:
        queue = JoinQueue()
        _, waiting, given, last = await settled(queue, "a", "b", "c", "d")
        waiting.cancel()
        queue.end("a")
        given.cancel()  # in the moment in which it gets its turn
        await last

    run(body())
