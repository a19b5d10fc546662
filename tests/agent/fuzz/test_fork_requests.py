"""Requests to a fork server: whole ones are read, and anything else reads as a disconnection."""

from __future__ import annotations

import array
import contextlib
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from ddpjob_agent.forkserver import channel
from ddpjob_agent.forkserver.channel import FDS, LENGTH, MAX_BYTES, ForkRequest
from support.fuzzing import fuzz, measured, mutated, mutated_json

VALID: list[Any] = [
    "torchrun", ["train.py", "--lr", "0.1"], {"PATH": "/bin", "RANK": "0"}, "/work", "",
]  # fmt: skip
valid = st.sampled_from([VALID, ["agent", *VALID[1:4], "/run/netns/a"], ["program", *VALID[1:]]])
requests = mutated_json(valid).map(json.dumps).map(str.encode)


def framed(body: bytes) -> bytes:
    return LENGTH.pack(len(body)) + body


def descriptors_of_this_process() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


@contextlib.contextmanager
def sent(data: bytes, lines: int) -> Iterator[socket.socket]:
    """Yield the end of a fork server; the other side sent these bytes and descriptors, and closed."""
    server, client = socket.socketpair()
    line, other = socket.socketpair()
    with server, line, other:
        with client:
            client.setblocking(False)
            rights = [
                (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [line.fileno()] * lines))
            ]
            count = client.sendmsg([data[: LENGTH.size]], rights if lines else []) if data else 0
            with contextlib.suppress(BlockingIOError):  # the rest reads as cut off
                client.sendall(data[count:])
        yield server


def received(data: bytes, lines: int) -> ForkRequest | None:
    """Return the request that a fork server reads; it keeps no descriptor of another one."""
    before = descriptors_of_this_process()

    def read() -> ForkRequest | None:
        with sent(data, lines) as server:
            asked = channel.receive(server)
        for each in asked[1] if asked else ():
            os.close(each)
        assert asked is None or len(asked[1]) == FDS == min(lines, FDS)
        return asked[0] if asked else None

    request = measured(read, len(data))
    assert descriptors_of_this_process() == before
    return request


def check(request: ForkRequest | None) -> None:
    """Check that a fork server can act on a request."""
    if request is not None:
        assert request.kind in ("torchrun", "program", "agent")
        assert request.arguments
        texts = [*request.arguments, *request.environment, *request.environment.values()]
        assert {type(each) for each in (*texts, request.directory, request.network)} == {str}


@fuzz(150)
@given(requests, st.sampled_from([FDS, FDS, FDS, 0, 1, FDS + 1]))
@example(json.dumps(VALID[:4]).encode(), FDS)
@example(json.dumps([*VALID, ""]).encode(), FDS)
@example(b"[" * 100_000, FDS)
@example(b"", FDS)
def test_a_request_is_whole_or_refused(body: bytes, lines: int) -> None:
    check(received(framed(body), lines))


@fuzz(150)
@given(mutated(requests.map(framed)))
@example(LENGTH.pack(MAX_BYTES))
@example(LENGTH.pack(2**32 - 1))
@example(LENGTH.pack(MAX_BYTES + 1) + b"x" * 1000)
def test_changed_bytes_are_whole_requests_or_refused(data: bytes) -> None:
    check(received(data, FDS))


def test_valid_requests_are_read() -> None:
    assert received(framed(json.dumps(VALID).encode()), FDS) == ForkRequest(*VALID)


def test_the_last_descriptor_is_a_socket() -> None:
    server, client = socket.socketpair()
    with server, client, Path(os.devnull).open("rb") as file:
        channel.send(client, ForkRequest(*VALID), [file.fileno()] * FDS)
        assert channel.receive(server) is None
