"""An agent's sessions: the pauses after those that end early, and a heartbeat on demand."""

from __future__ import annotations

import asyncio
import contextlib
import itertools

import pytest

from ddpjob_agent.net import service_connection
from ddpjob_agent.net.framing import Connection, accept
from ddpjob_agent.net.service_connection import RETRY_SECONDS, ServiceConnection
from ddpjob_agent.net.sockets.listening import Listener, bind
from ddpjob_protocol.messages.agent import Message
from support.keys import KEY, credential

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
        connection = await accept(reader, writer, KEY.worker)
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
            "127.0.0.1", listener.port, credential("a"), hello, lambda _: None, pause=pause
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


def test_a_service_that_asks_receives_a_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decision that waits for a message does not wait for the next heartbeat."""
    monkeypatch.setattr(service_connection, "BEAT_SECONDS", 1e6)

    async def main() -> Message | None:
        answered: asyncio.Future[Message | None] = asyncio.get_running_loop().create_future()

        async def serve(
            reader: asyncio.StreamReader, writer: asyncio.StreamWriter, _: object
        ) -> None:
            await reader.readexactly(5)
            connection = await accept(reader, writer, KEY.worker)
            await connection.receive()
            connection.send({"type": "ask"})
            answered.set_result(await connection.receive())
            connection.close()

        with contextlib.closing(Listener(bind("127.0.0.1", 0), serve)) as listener:
            link = ServiceConnection(
                "127.0.0.1",
                listener.port,
                credential("a"),
                lambda: {"membership": None},
                lambda _: None,
            )
            session = asyncio.ensure_future(link.run())
            message = await asyncio.wait_for(answered, PATIENCE_SECONDS)
            session.cancel()
            await asyncio.wait([session])
            return message

    message = asyncio.run(main())
    assert message is not None
    assert message["type"] == "beat"
