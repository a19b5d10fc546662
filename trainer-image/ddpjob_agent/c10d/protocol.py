"""The wire protocol of torch's TCPStore (c10d) in torch 2.15.

A request is one command byte and its arguments; integers are little-endian; keys and values are
a 64-bit length and the bytes. The limits of keys and values are those of torch's own server. Torch
has none for a whole request or answer; ours bounds the memory of agents and service.

Agents send requests to the service in the same form.

May not: know the effect of a request on a store, or write to a connection.
"""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator

MAGIC = 0x3C85F7CE
MAX_KEYS = 128 * 1024
MAX_KEY_BYTES = 8 * 1024
MAX_VALUE_BYTES = 8 * 1024 * 1024
MAX_BYTES = 64 * 1024 * 1024  # of the keys and values of one request, and of one answer

READY, NOT_READY = b"\0", b"\1"  # answers to CHECK
STOP_WAITING, WAIT_CANCELED = b"\0", b"\1"  # answers to WAIT and BARRIER, and to CANCEL_WAIT


class ProtocolError(Exception):
    """A client violated the protocol; its connection must be closed."""


class Op(enum.IntEnum):
    """A command, with torch's number."""

    VALIDATE = 0
    SET = 1
    COMPARE_SET = 2
    GET = 3
    ADD = 4
    CHECK = 5
    WAIT = 6
    GETNUMKEYS = 7
    DELETE_KEY = 8
    APPEND = 9
    MULTI_GET = 10
    MULTI_SET = 11
    CANCEL_WAIT = 12
    PING = 13
    QUEUE_PUSH = 14
    QUEUE_POP = 15
    QUEUE_LEN = 16
    LIST_KEYS = 17
    BARRIER = 18


BLOCKING = frozenset({Op.WAIT, Op.BARRIER})
WRITES = frozenset(
    {Op.SET, Op.MULTI_SET, Op.COMPARE_SET, Op.ADD, Op.APPEND, Op.QUEUE_PUSH, Op.BARRIER}
)  # those that add to the store

# Arguments after the command byte: k is a key, v a value, i an int64, u a uint32. K is a count
# and its keys, P a count and its pairs of key and value.
_ARGUMENTS = {
    Op.VALIDATE: "u",
    Op.SET: "kv",
    Op.COMPARE_SET: "kvv",
    Op.GET: "k",
    Op.ADD: "ki",
    Op.CHECK: "K",
    Op.WAIT: "K",
    Op.GETNUMKEYS: "",
    Op.DELETE_KEY: "k",
    Op.APPEND: "kv",
    Op.MULTI_GET: "K",
    Op.MULTI_SET: "P",
    Op.CANCEL_WAIT: "",
    Op.PING: "u",
    Op.QUEUE_PUSH: "kv",
    Op.QUEUE_POP: "k",
    Op.QUEUE_LEN: "k",
    Op.LIST_KEYS: "",
    Op.BARRIER: "ki",
}
_INTEGERS = {"i": "<q", "u": "<I"}


@dataclasses.dataclass(frozen=True)
class Request:
    """A command with its arguments."""

    op: Op
    keys: tuple[bytes, ...] = ()
    values: tuple[bytes, ...] = ()
    number: int = 0  # addend, world size, nonce or magic


def encode_request(request: Request) -> bytes:
    """Encode a request as torch's clients do; raise ProtocolError if it is too large."""
    _Budget(request.op).spend(sum(map(len, (*request.keys, *request.values))))
    parts = [bytes([request.op])]
    keys, values = iter(request.keys), iter(request.values)
    for argument in _ARGUMENTS[request.op]:
        if argument == "k":
            parts.append(encode_bytes(next(keys)))
        elif argument == "v":
            parts.append(encode_bytes(next(values)))
        elif argument in _INTEGERS:
            parts.append(struct.pack(_INTEGERS[argument], request.number))
        else:
            parts.append(struct.pack("<Q", len(request.keys)))
            for key in keys:
                parts.append(encode_bytes(key))
                if argument == "P":
                    parts.append(encode_bytes(next(values)))
    return b"".join(parts)


def decode_request(data: bytes | bytearray) -> Request:
    """Return the request from its encoded form; raise ProtocolError if the form is invalid."""
    view = memoryview(data)
    parsing, at, size = _parse(), 0, 0
    try:
        size = next(parsing)
        while at + size <= len(data):
            begin, at = at, at + size
            size = parsing.send(bytes(view[begin:at]))
    except StopIteration as end:
        if at != len(data):
            raise ProtocolError(f"{len(data) - at} bytes after a request") from None
        request: Request = end.value
        return request
    raise ProtocolError("a request that ends early")


async def read_request(reader: asyncio.StreamReader) -> Request | None:
    """Return the next request, or None at the end of the stream; raise ProtocolError."""
    command = await reader.read(1)
    if not command:
        return None
    parsing = _parse()
    next(parsing)
    try:
        size = parsing.send(command)
        while True:
            size = parsing.send(await reader.readexactly(size))
    except StopIteration as end:
        request: Request = end.value
        return request
    except asyncio.IncompleteReadError:
        raise ProtocolError(f"connection ended within a {Op(command[0]).name} request") from None


def encode_integer(number: int) -> bytes:
    """Encode an answer that is a signed 64-bit integer."""
    return struct.pack("<q", number)


def encode_bytes(value: bytes | bytearray) -> bytes:
    """Encode an answer that is a string: its length and its content."""
    return struct.pack("<Q", len(value)) + value


def encode_pong(nonce: int) -> bytes:
    """Encode the answer to PING."""
    return struct.pack("<I", nonce)


def _parse() -> Generator[int, bytes, Request]:
    """Yield the size of each next piece, and receive the piece; return the request."""
    command = (yield 1)[0]
    try:
        op = Op(command)
    except ValueError:
        raise ProtocolError(f"unknown command {command}") from None
    budget = _Budget(op)
    keys: list[bytes] = []
    values: list[bytes] = []
    number = 0
    for argument in _ARGUMENTS[op]:
        if argument == "k":
            keys.append((yield from _parse_bytes(MAX_KEY_BYTES, budget)))
        elif argument == "v":
            values.append((yield from _parse_bytes(MAX_VALUE_BYTES, budget)))
        elif argument in _INTEGERS:
            number = yield from _parse_integer(_INTEGERS[argument])
        else:
            for _ in range((yield from _parse_length(MAX_KEYS))):
                keys.append((yield from _parse_bytes(MAX_KEY_BYTES, budget)))
                if argument == "P":
                    values.append((yield from _parse_bytes(MAX_VALUE_BYTES, budget)))
    if op is Op.VALIDATE and number != MAGIC:
        raise ProtocolError(f"wrong magic {number:#x}")
    return Request(op, tuple(keys), tuple(values), number)


class _Budget:
    def __init__(self, op: Op) -> None:
        self._op = op
        self._left = MAX_BYTES

    def spend(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise ProtocolError(
                f"a {self._op.name} request has more than {MAX_BYTES} bytes; split it"
            )


def _parse_integer(layout: str) -> Generator[int, bytes, int]:
    (number,) = struct.unpack(layout, (yield struct.calcsize(layout)))
    return int(number)


def _parse_length(limit: int) -> Generator[int, bytes, int]:
    length = yield from _parse_integer("<Q")
    if length > limit:
        raise ProtocolError(f"length {length} is over the limit of {limit}")
    return length


def _parse_bytes(limit: int, budget: _Budget) -> Generator[int, bytes, bytes]:
    length = yield from _parse_length(limit)
    budget.spend(length)
    return (yield length) if length else b""
