"""Frames of the link: whatever arrives is messages, the end, or a FramingError."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ddpjob_agent.net.framing import (
    MAGIC,
    MAX_FRAME_BYTES,
    Connection,
    FrameKeys,
    FramingError,
    WrongKeyError,
    accept,
)
from ddpjob_agent.net.sockets.listening import STREAM_BYTES
from support.fuzzing import Draw, connection, fuzz, measured, mutated, mutated_json, run

BEAT: dict[str, Any] = {
    "type": "beat", "processes": [{"rank": 0, "step": 1, "where": "a.py:7", "membership": "1.1.1"}],
}  # fmt: skip
STORE: dict[str, Any] = {
    "type": "store", "id": 5, "membership": "1.1.1",
    "request": {"op": 1, "keys": ["aw=="], "values": ["dg=="], "number": 0},
}  # fmt: skip
messages = st.sampled_from([BEAT, STORE, {"type": "ready"}])


AGENT, SERVICE = FrameKeys(b"agent", b"service"), FrameKeys(b"service", b"agent")


def framed(texts: list[bytes]) -> bytes:
    """Return the frames of an agent."""

    async def body() -> bytes:
        with connection(b"", STREAM_BYTES) as (reader, writer, sink):
            link = Connection(reader, writer, AGENT)
            for text in texts:
                link.send_json(text)
            return bytes(sink.data)

    return run(body())


def receive_all(data: bytes) -> tuple[list[Any], str]:
    """Return all messages that a service receives, and the refusal of what follows."""

    async def body() -> tuple[list[Any], str]:
        found: list[Any] = []
        with connection(data, STREAM_BYTES) as (reader, writer, _):
            link = Connection(reader, writer, SERVICE)
            try:
                while (message := await link.receive()) is not None:
                    found.append(message)
            except FramingError as error:
                return found, str(error)
        return found, ""

    return measured(lambda: run(body()), len(data))


def texts_of(values: list[Any]) -> list[bytes]:
    return [json.dumps(value).encode() for value in values]


@fuzz(150)
@given(st.lists(mutated(mutated_json(messages, 1).map(json.dumps).map(str.encode)), max_size=3))
@example([b"[" * 100_000])
@example([b"9" * 5000])
@example([b'{"type": "\xff"}'])
def test_texts_are_messages_or_a_refusal(texts: list[bytes]) -> None:
    found, refusal = receive_all(framed(texts))
    assert len(refusal) < 300
    assert bool(refusal) == (len(found) < len(texts))
    assert all(isinstance(each["type"], str) for each in found)


@st.composite
def changed(draw: Draw) -> tuple[list[Any], bytes]:
    """Return messages, and their frames with changes."""
    values = draw(st.lists(messages, min_size=1, max_size=3))
    return values, draw(mutated(st.just(framed(texts_of(values)))))


@fuzz(150)
@given(changed())
@example(([], MAX_FRAME_BYTES.to_bytes(4, "big")))
@example(([BEAT], framed(texts_of([BEAT])) * 2))
@example(([BEAT, STORE], framed(texts_of([BEAT, STORE]))[len(framed(texts_of([BEAT]))) :]))
def test_frames_that_were_changed_are_not_received(sent: tuple[list[Any], bytes]) -> None:
    values, data = sent
    found, refusal = receive_all(data)
    assert found == values[: len(found)]
    assert len(refusal) < 300


@pytest.mark.parametrize("length", [MAX_FRAME_BYTES + 1, 2**31, 2**32 - 1])
def test_a_frame_has_a_size_that_is_refused_before_its_bytes(length: int) -> None:
    assert receive_all(length.to_bytes(4, "big") + b"x" * 100)[1]


@fuzz(50)
@given(st.lists(messages, max_size=3))
def test_messages_arrive_as_they_were_sent(values: list[Any]) -> None:
    assert receive_all(framed(texts_of(values))) == (values, "")


@fuzz(50)
@given(mutated(st.just(MAGIC[5:] + bytes(16) + b"\1a" + bytes(32))))
def test_a_handshake_without_the_key_is_refused(data: bytes) -> None:
    async def body() -> str:
        with connection(data, STREAM_BYTES) as (reader, writer, _):
            try:
                await accept(reader, writer, lambda name: name.encode() + b" key")
            except (FramingError, WrongKeyError) as error:
                return str(error)
        return ""

    assert 0 < len(measured(lambda: run(body()), len(data))) < 400
