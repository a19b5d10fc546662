"""Means that all fuzzers share: foreign bytes made from valid ones, and the measures of a reader's work.

A reader of foreign bytes returns values within its limits, or raises the refusal that it documents.
Its work and its memory are bounded by the number of bytes that it was given. Both are counted, and
no time is measured: `measured` fails when a reader calls too much, so an endless loop fails, too.

Each run tries the same examples. `DDPJOB_FUZZ=N` tries N times as many, and others each time.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import math
import os
import sys
import tracemalloc
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from support import fake_time

FACTOR = int(os.environ.get("DDPJOB_FUZZ") or 0)
MAX_TIMES = (
    100  # bytes of memory for each byte of JSON that is read: `[],` is an object and a place
)
CONSTANT_BYTES = 1 << 20
MAX_CALLS = 100  # for each byte that is read
CONSTANT_CALLS = 100_000

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., object])
Draw = Callable[[st.SearchStrategy[Any]], Any]
Change = Callable[[Draw, bytes], bytes]


def fuzz(examples: int = 200) -> Callable[[F], F]:
    """Return the decorator of a fuzzer that tries this number of examples in a usual run."""
    return settings(
        max_examples=examples * max(FACTOR, 1),
        derandomize=not FACTOR,
        database=None,
        suppress_health_check=[
            HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much,
            HealthCheck.function_scoped_fixture,
        ],
    )  # fmt: skip


class TooMuchMemoryError(AssertionError):
    """A reader took too much memory."""


def measured(
    read: Callable[[], T], size: int, *, times: int = MAX_TIMES, calls: int = MAX_CALLS
) -> T:
    """Return the result of a reader; fail if it takes too much memory or calls for `size` bytes.

    A table of the interpreter may grow meanwhile, so only memory that is taken each time counts.
    """
    for _ in range(2):
        with contextlib.suppress(TooMuchMemoryError), _limits(size, times, calls):
            return read()
    with _limits(size, times, calls):
        return read()


@contextlib.contextmanager
def _limits(size: int, times: int, calls: int) -> Iterator[None]:
    left = CONSTANT_CALLS + calls * size

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal left
        left -= event in ("call", "c_call")
        if left < 0:
            sys.setprofile(None)
            raise AssertionError(f"{size} bytes cost too many calls")

    tracemalloc.start()
    sys.setprofile(count)
    try:
        yield
    finally:
        sys.setprofile(None)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert left >= 0, f"{size} bytes cost too many calls"
        if peak > CONSTANT_BYTES + times * size:
            raise TooMuchMemoryError(f"{size} bytes took {peak} bytes of memory")


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in fake time; one that waits for what cannot happen fails."""
    return fake_time.run(main)


class Sink(asyncio.Transport):
    """The end of a connection that keeps what is written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.data = bytearray()
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.data += data

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True


@contextlib.contextmanager
def connection(
    data: bytes, limit: int
) -> Iterator[tuple[asyncio.StreamReader, asyncio.StreamWriter, Sink]]:
    """Have a peer that sends these bytes and closes: its streams, and what it receives."""
    reader, sink = asyncio.StreamReader(limit), Sink()
    reader.feed_data(data)
    reader.feed_eof()
    protocol = asyncio.StreamReaderProtocol(reader)
    with contextlib.closing(sink):
        writer = asyncio.StreamWriter(sink, protocol, reader, asyncio.get_running_loop())
        yield reader, writer, sink


# --- bytes ----------------------------------------------------------------------------------------

EXTREMES = (0, 1, -1, 127, 128, 255, 256, 2**15, 2**16, 2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**63)
WORDS = (
    b"\0",
    b"\n",
    b"\r\n",
    b"\r\n\r\n",
    b" ",
    b'"',
    b"\\",
    b"[",
    b"]",
    b"{",
    b"}",
    b",",
    b"\xff" * 4,
)


def _flip(draw: Draw, data: bytes) -> bytes:
    at = draw(st.integers(0, max(len(data) - 1, 0)))
    return data[:at] + bytes([draw(st.integers(0, 255))]) + data[at + 1 :]


def _cut(draw: Draw, data: bytes) -> bytes:
    end: int = draw(st.integers(0, len(data)))
    return data[:end]


def _drop(draw: Draw, data: bytes) -> bytes:
    at, end = sorted((draw(st.integers(0, len(data))), draw(st.integers(0, len(data)))))
    return bytes(data[:at] + data[end:])


def _repeat(draw: Draw, data: bytes) -> bytes:
    at, end = sorted((draw(st.integers(0, len(data))), draw(st.integers(0, len(data)))))
    times: int = draw(st.sampled_from([1, 2, 50]))
    return data[:end] + data[at:end] * times + data[end:]


def _insert(draw: Draw, data: bytes) -> bytes:
    at = draw(st.integers(0, len(data)))
    word: bytes = draw(st.sampled_from(WORDS) | st.binary(max_size=9))
    return data[:at] + word + data[at:]


def _extreme(draw: Draw, data: bytes) -> bytes:
    """Replace what may be an integer."""
    width = draw(st.sampled_from([1, 2, 4, 8]))
    number: int = draw(st.sampled_from(EXTREMES)) % 2 ** (8 * width)
    at = draw(st.integers(0, max(len(data) - width, 0)))
    order = draw(st.sampled_from(["little", "big"]))
    return data[:at] + number.to_bytes(width, order) + data[at + width :]


def _digits(draw: Draw, data: bytes) -> bytes:
    """Replace a number in a text."""
    number = str(draw(st.sampled_from(EXTREMES))).encode()
    starts = [at for at in range(len(data)) if data[at : at + 1].isdigit()]
    if not starts:
        return data + number
    at = draw(st.sampled_from(starts))
    return data[:at] + number + data[at:].lstrip(b"0123456789")


_CHANGES = (_flip, _cut, _drop, _repeat, _insert, _extreme, _digits)


@st.composite
def mutated(draw: Draw, valid: st.SearchStrategy[bytes]) -> bytes:
    """Return valid bytes with up to three changes."""
    data: bytes = draw(valid)
    for _ in range(draw(st.integers(0, 3))):
        data = draw(st.sampled_from(_CHANGES))(draw, data)
    return data


# --- JSON -----------------------------------------------------------------------------------------

DEEP = json.loads("[" * 300 + "]" * 300)
ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**31, 2**63 - 1, 2**63, -(2**63), 10**400, 10**4299, 0.5, -1.5,
    1e300, 1e12, math.nan, math.inf, -math.inf, "", "x", "1", "1.1.1", "9.9.9", "\0", "\ud800", "a\nb",
    "x" * 70, "x" * 300, "/", "..", "../x", "x " * 3000, "x" * 300_000, [], [[]], {}, {"": {}},
    [None] * 3, DEEP, {"x" * 300: 1},
)  # fmt: skip
odd_values: st.SearchStrategy[Any] = (
    st.sampled_from(ODD) | st.integers() | st.floats() | st.text(max_size=5)
)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Return each container in a value with each of its keys."""
    found: list[tuple[Any, Any]] = []
    left = [value]
    while left:
        each = left.pop()
        if isinstance(each, (dict, list)):
            keys: Sequence[Any] = [*each] if isinstance(each, dict) else range(len(each))
            found += [(each, key) for key in keys]
            left += [each[key] for key in keys if each[key] is not DEEP]
    return found


@st.composite
def mutated_json(draw: Draw, valid: st.SearchStrategy[Any], changes: int = 2) -> Any:
    """Return valid JSON in which values are replaced, removed, repeated or exchanged."""
    root = [copy.deepcopy(draw(valid))]
    for _ in range(draw(st.integers(0, changes))):
        known = places(root)
        container, key = draw(st.sampled_from(known))
        how = draw(
            st.sampled_from(["replace", "replace", "replace", "remove", "repeat", "exchange"])
        )
        if how == "remove" and container is not root:
            del container[key]
        elif how == "repeat" and isinstance(container[key], list):
            container[key] = container[key] * draw(st.sampled_from([2, 200]))
        elif how == "exchange":
            other, at = draw(st.sampled_from(known))
            container[key] = copy.deepcopy(other[at])
        else:
            value = draw(odd_values)
            container[key] = value if value is DEEP else copy.deepcopy(value)
    return root[0]


def size_of(value: Any) -> int:
    """Return the number of bytes of a value in JSON."""
    return len(json.dumps(value))
