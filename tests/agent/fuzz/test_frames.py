"""Frames of the link: whatever arrives is messages, the end, or a FramingError."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ddpjob_agent.net.framing import MAX_FRAME_BYTES, Connection, FrameKeys, FramingError, _tag
from ddpjob_agent.net.listening import STREAM_BYTES
from support.fuzzing import connection, fuzz, measured, mutated, mutated_json, run

BEAT: dict[str, Any] = {
    "type": "beat", "processes": [{"rank": 0, "step": 1, "where": "a.py:7", "membership": "1.1.1"}],
}  # fmt: skip
STORE: dict[str, Any] = {
    "type": "store", "id": 5, "membership": "1.1.1",
    "request": {"op": 1, "keys": ["aw=="], "values": ["dg=="], "number": 0},
}  # fmt: skip
messages = st.sampled_from([BEAT, STORE, {"type": "ready"}])


KEYS = FrameKeys(b"both", b"both")


def framed(data: bytes, number: int = 0) -> bytes:
    return len(data).to_bytes(4, "big") + data + _tag(KEYS.receive, number, data)


def frames(values: list[Any]) -> bytes:
    return b"".join(framed(json.dumps(value).encode(), at) for at, value in enumerate(values))


def receive_all(data: bytes) -> list[Any] | str:
    """Return all messages, or the refusal."""

    async def body() -> list[Any] | str:
        found = []
        with connection(data, STREAM_BYTES) as (reader, writer, _):
            link = Connection(reader, writer, KEYS)
            try:
                while (message := await link.receive()) is not None:
                    found.append(message)
            except FramingError as error:
                return str(error)
        return found

    return measured(lambda: run(body()), len(data))


@fuzz(150)
@given(mutated(st.lists(mutated_json(messages, 1), min_size=1, max_size=3).map(frames)))
@example(framed(b"[" * 100_000))
@example(framed(b"9" * 5000))
@example(framed(b'{"type": "\xff"}'))
@example(MAX_FRAME_BYTES.to_bytes(4, "big"))
def test_bytes_are_messages_the_end_or_a_refusal(data: bytes) -> None:
    found = receive_all(data)
    if isinstance(found, str):
        assert len(found) < 300
        return
    assert all(isinstance(each["type"], str) for each in found)
    assert len(found) <= len(data) // len(framed(b'{"type":""}'))


@pytest.mark.parametrize("length", [MAX_FRAME_BYTES + 1, 2**31, 2**32 - 1])
def test_a_frame_has_a_size_that_is_refused_before_its_bytes(length: int) -> None:
    assert isinstance(receive_all(length.to_bytes(4, "big") + b"x" * 100), str)


@fuzz(100)
@given(st.lists(messages, max_size=3))
def test_messages_arrive_as_they_were_sent(values: list[Any]) -> None:
    async def body() -> bytes:
        with connection(b"", STREAM_BYTES) as (reader, writer, sink):
            link = Connection(reader, writer, KEYS)
            for value in values:
                link.send(value)
            return bytes(sink.data)

    assert receive_all(run(body())) == values
