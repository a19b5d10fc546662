"""Requests of c10d clients, from a socket and from an agent: within torch's limits, or refused."""

from __future__ import annotations

import struct

from hypothesis import example, given
from hypothesis import strategies as st

from ddpjob_agent.c10d import protocol
from ddpjob_agent.c10d.protocol import Op, ProtocolError, Request, decode_request, read_request
from ddpjob_agent.c10d.server import StoreBackend, serve_client
from ddpjob_agent.c10d.store import Store
from ddpjob_agent.net.sockets.listening import STREAM_BYTES
from support.fuzzing import Draw, connection, fuzz, measured, mutated, run

ARGUMENTS = {
    Op.VALIDATE: "u", Op.SET: "kv", Op.COMPARE_SET: "kvv", Op.GET: "k", Op.ADD: "ki", Op.CHECK: "K",
    Op.WAIT: "K", Op.GETNUMKEYS: "", Op.DELETE_KEY: "k", Op.APPEND: "kv", Op.MULTI_GET: "K",
    Op.MULTI_SET: "P", Op.CANCEL_WAIT: "", Op.PING: "u", Op.QUEUE_PUSH: "kv", Op.QUEUE_POP: "k",
    Op.QUEUE_LEN: "k", Op.LIST_KEYS: "", Op.BARRIER: "ki",
}  # fmt: skip
VALIDATE = Request(Op.VALIDATE, number=protocol.MAGIC)
keys = st.sampled_from([b"", b"k", b"/rank", b"x" * 300])
values = st.sampled_from([b"", b"1", b"-9223372036854775808", b"value"]) | st.binary(max_size=20)


@st.composite
def requests(draw: Draw) -> Request:
    """Return a valid request."""
    op = draw(st.sampled_from(Op))
    if op is Op.VALIDATE:
        return VALIDATE
    arguments = ARGUMENTS[op]
    count = draw(st.integers(0, 4)) if arguments in ("K", "P") else None
    number = 0
    if "u" in arguments:
        number = draw(st.integers(0, 2**32 - 1))
    elif "i" in arguments:
        number = draw(st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 2))
    n_keys = arguments.count("k") if count is None else count
    n_values = (count or 0) if arguments == "P" else arguments.count("v")
    return Request(
        op,
        tuple(draw(keys) for _ in range(n_keys)),
        tuple(draw(values) for _ in range(n_values)),
        number,
    )


def text(data: bytes) -> bytes:
    return struct.pack("<Q", len(data)) + data


def to_bytes(request: Request) -> bytes:
    """Return the request as torch's client sends it."""
    arguments = ARGUMENTS[request.op]
    parts = [bytes([request.op])]
    if arguments in ("K", "P"):
        parts.append(struct.pack("<Q", len(request.keys)))
        for at, key in enumerate(request.keys):
            parts += [text(key), *map(text, request.values[at : at + 1])]
    else:
        parts += [*map(text, request.keys), *map(text, request.values)]
    if "u" in arguments:
        parts.append(struct.pack("<I", request.number))
    if "i" in arguments:
        parts.append(struct.pack("<q", request.number))
    return b"".join(parts)


def stream_of(sent: list[Request]) -> bytes:
    return b"".join(map(to_bytes, sent))


streams = st.lists(requests(), min_size=1, max_size=4).map(stream_of)


def read_all(data: bytes) -> list[Request] | ProtocolError:
    async def body() -> list[Request] | ProtocolError:
        found = []
        with connection(data, STREAM_BYTES) as (reader, _, _):
            try:
                while (request := await read_request(reader)) is not None:
                    found.append(request)
            except ProtocolError as error:
                return error
        return found

    return measured(lambda: run(body()), len(data))


def check_limits(request: Request) -> None:
    assert len(request.keys) <= protocol.MAX_KEYS
    assert all(len(key) <= protocol.MAX_KEY_BYTES for key in request.keys)
    assert all(len(value) <= protocol.MAX_VALUE_BYTES for value in request.values)
    assert sum(map(len, (*request.keys, *request.values))) <= protocol.MAX_BYTES
    assert type(request.number) is int
    assert -(2**63) <= request.number < 2**63


@fuzz(200)
@given(mutated(streams))
@example(bytes([Op.MULTI_SET]) + struct.pack("<Q", protocol.MAX_KEYS))
@example(bytes([Op.MULTI_GET]) + struct.pack("<Q", 2**64 - 1))
@example(bytes([Op.SET]) + struct.pack("<Q", protocol.MAX_KEY_BYTES))
def test_bytes_are_requests_or_a_refusal(data: bytes) -> None:
    found = read_all(data)
    if isinstance(found, ProtocolError):
        assert len(str(found)) < 300
        return
    for request in found:
        check_limits(request)
        assert decode_request(to_bytes(request)) == request
    assert stream_of(found) == data


@fuzz(100)
@given(st.lists(requests(), max_size=4))
def test_requests_arrive_as_they_were_sent(sent: list[Request]) -> None:
    assert read_all(stream_of(sent)) == sent


@fuzz(200)
@given(mutated(requests().map(to_bytes)))
@example(b"")
@example(to_bytes(VALIDATE) + b"x")
def test_a_forwarded_request_is_within_the_limits_or_refused(data: bytes) -> None:
    try:
        request = measured(lambda: decode_request(data), len(data))
    except ProtocolError as error:
        assert len(str(error)) < 300
        return
    check_limits(request)
    assert protocol.encode_request(request) == data


@fuzz(200)
@given(mutated(st.lists(requests(), max_size=6).map(lambda sent: stream_of([VALIDATE, *sent]))))
def test_a_client_is_served_or_dropped(data: bytes) -> None:
    async def body() -> bool:
        with connection(data, STREAM_BYTES) as (reader, writer, sink):
            await serve_client(reader, writer, StoreBackend(Store()))
            return sink.closed

    assert run(body())
