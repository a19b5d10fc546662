"""The pauses of an agent whose sessions with the service end early: they grow, up to a limit."""

from __future__ import annotations

import asyncio
import contextlib
import itertools

import pytest

from ddpjob_agent.net import service_connection
from ddpjob_agent.net.framing import Connection, accept
from ddpjob_agent.net.listening import Listener, bind
from ddpjob_agent.net.service_connection import RETRY_SECONDS, ServiceConnection
from ddpjob_protocol.messages import Message

TOKEN = "the token of this job"
FIRST, LONGEST = RETRY_SECONDS
PATIENCE_SECONDS = 60.0
ATTEMPTS = 9


class EnoughError(Exception):
    """The test has enough pauses."""


def pauses_with(sessions: list[list[str]]) -> list[float]:
    """Return the pauses before each attempt, if the service ends each session after its messages.

    After the last session each further one ends after the handshake.
    """
    found: list[float] = []
    answers = itertools.chain(sessions, itertools.repeat([]))

    async def serve(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, _authenticated: object
    ) -> None:
        await reader.readexactly(5)
        connection = await accept(reader, writer, TOKEN)
        await connection.receive()
        for kind in next(answers):
            connection.send({"type": kind})
        connection.close()

    async def pause(seconds: float) -> None:
        found.append(seconds)
        if len(found) == ATTEMPTS:
            raise EnoughError

    def hello() -> Message:
        return {"membership": None}

    async def main() -> None:
        listener = Listener(bind("127.0.0.1", 0), serve)
        link = ServiceConnection(
            "127.0.0.1", listener.port, TOKEN, hello, lambda _: None, pause=pause
        )
        with contextlib.suppress(EnoughError):
            await asyncio.wait_for(link.run(), PATIENCE_SECONDS)
        listener.close()

    asyncio.run(main())
    return found


def check(pauses: list[float]) -> None:
    """Check that each pause is a random share of a limit that doubles up to LONGEST."""
    for number, seconds in enumerate(pauses):
        most = min(LONGEST, FIRST * 2**number)
        assert most / 2 <= seconds <= most, f"pause {number}"


def test_sessions_that_end_after_the_handshake_have_growing_pauses() -> None:
    pauses = pauses_with([])
    check(pauses)
    assert len(set(pauses)) > 1, "agents spread their attempts"


def test_an_order_alone_does_not_shorten_the_pause() -> None:
    check(pauses_with([["halt"]] * ATTEMPTS))


def test_a_session_that_has_lasted_shortens_the_pause() -> None:
    pauses = pauses_with([[], [], ["beat"]])
    check(pauses[:2])
    check(pauses[2:])


def test_a_port_without_a_service_has_the_same_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: object) -> Connection:
        raise ConnectionRefusedError

    monkeypatch.setattr(service_connection, "connect", refuse)
    check(pauses_with([]))
