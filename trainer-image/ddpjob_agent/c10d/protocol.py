"""The wire protocol of torch's TCPStore (c10d) in torch 2.15.

A request is one command byte and its arguments; integers are little-endian; keys and values are
a 64-bit length and the bytes. The limits of requests are those of torch's own server.

May not: know the effect of a request on a store, or write to a connection.
"""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import struct
from typing import Any

from ddpjob_protocol.codec import DecodeError, decode

MAGIC = 0x3C85F7CE
MAX_KEYS = 128 * 1024
MAX_KEY_BYTES = 8 * 1024
MAX_VALUE_BYTES = 8 * 1024 * 1024

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


@dataclasses.dataclass(frozen=True)
class Request:
    """A command with its arguments."""

    op: Op
    keys: tuple[bytes, ...] = ()
    values: tuple[bytes, ...] = ()
    number: int = 0  # addend, world size, nonce or magic


def decode_request(data: Any) -> Request:
    """Return the request from its JSON form; raise ProtocolError if the form is invalid."""
    try:
        request = decode(Request, data)
    except DecodeError as error:
        raise ProtocolError(f"malformed request: {error}") from error
    if not _is_possible(request):
        raise ProtocolError(f"impossible {request.op.name} request")
    return request


async def read_request(reader: asyncio.StreamReader) -> Request | None:
    """Return the next request, or None at the end of the stream; raise ProtocolError."""
    command = await reader.read(1)
    if not command:
        return None
    try:
        op = Op(command[0])
    except ValueError:
        raise ProtocolError(f"unknown command {command[0]}") from None
    keys: list[bytes] = []
    values: list[bytes] = []
    number = 0
    try:
        for argument in _ARGUMENTS[op]:
            if argument == "k":
                keys.append(await _read_bytes(reader, MAX_KEY_BYTES))
            elif argument == "v":
                values.append(await _read_bytes(reader, MAX_VALUE_BYTES))
            elif argument == "i":
                number = await _read_integer(reader, "<q")
            elif argument == "u":
                number = await _read_integer(reader, "<I")
            else:
                for _ in range(await _read_length(reader, MAX_KEYS)):
                    keys.append(await _read_bytes(reader, MAX_KEY_BYTES))
                    if argument == "P":
                        values.append(await _read_bytes(reader, MAX_VALUE_BYTES))
    except asyncio.IncompleteReadError:
        raise ProtocolError(f"connection ended within a {op.name} request") from None
    if op is Op.VALIDATE and number != MAGIC:
        raise ProtocolError(f"wrong magic {number:#x}")
    return Request(op, tuple(keys), tuple(values), number)


def encode_integer(number: int) -> bytes:
    """Encode an answer that is a signed 64-bit integer."""
    return struct.pack("<q", number)


def encode_bytes(value: bytes) -> bytes:
    """Encode an answer that is a string: its length and its content."""
    return struct.pack("<Q", len(value)) + value


def encode_pong(nonce: int) -> bytes:
    """Encode the answer to PING."""
    return struct.pack("<I", nonce)


async def _read_integer(reader: asyncio.StreamReader, layout: str) -> int:
    (number,) = struct.unpack(layout, await reader.readexactly(struct.calcsize(layout)))
    return int(number)


async def _read_length(reader: asyncio.StreamReader, limit: int) -> int:
    length = await _read_integer(reader, "<Q")
    if length > limit:
        raise ProtocolError(f"length {length} is over the limit of {limit}")
    return length


async def _read_bytes(reader: asyncio.StreamReader, limit: int) -> bytes:
    return await reader.readexactly(await _read_length(reader, limit))


def _is_possible(request: Request) -> bool:
    arguments = _ARGUMENTS[request.op]
    if arguments == "K":
        counts_fit = len(request.keys) <= MAX_KEYS and not request.values
    elif arguments == "P":
        counts_fit = len(request.keys) == len(request.values) <= MAX_KEYS
    else:
        counts = (len(request.keys), len(request.values))
        counts_fit = counts == (arguments.count("k"), arguments.count("v"))
    return (
        counts_fit
        and type(request.number) is int
        and -(2**63) <= request.number < 2**63
        and all(len(key) <= MAX_KEY_BYTES for key in request.keys)
        and all(len(value) <= MAX_VALUE_BYTES for value in request.values)
    )
