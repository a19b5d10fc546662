"""How a fork is asked for: one JSON object and the descriptors that go with it, by Unix socket.

The last descriptor is the new process's line to whoever asked. On it come, as lines of text, `pid N`
from the process when it has a session of its own, and `exit CODE` from the parent, if it reaps it.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import socket
import struct
from typing import NamedTuple

LENGTH = struct.Struct("!I")
FDS = 4  # stdin, stdout, stderr, line
LINE_BYTES = 64  # more than what is said on a line
PID, EXIT = "pid", "exit"
# What a parent says first, on the socket that requests come by: `ready` and, in JSON, its Python
# and the environment in which it imported torch; or `unfit` and the reason.
READY, UNFIT = "ready", "unfit"
# Kinds of requests. The process that runs torchrun becomes a child of the agent, and may itself
# ask for programs. An agent is executed, with a warm parent of its own below it.
TORCHRUN, PROGRAM, AGENT = "torchrun", "program", "agent"


class ForkRequest(NamedTuple):
    """What is to run."""

    kind: str
    arguments: list[str]  # as after `python -u`: SCRIPT ARGUMENT… or -m MODULE…; an agent's: all
    environment: dict[str, str]
    directory: str
    network: str = ""  # file of an agent's network namespace; empty: the parent's


def send(channel: socket.socket, request: ForkRequest, descriptors: list[int]) -> None:
    """Ask for a process; blocks until the parent has taken all of it."""
    body = json.dumps(request).encode()
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
    channel.sendmsg([LENGTH.pack(len(body))], [rights])
    channel.sendall(body)


def receive(channel: socket.socket) -> tuple[ForkRequest, list[int]] | None:
    """The next request, whole; None when the other side is gone."""
    room = socket.CMSG_SPACE(FDS * array.array("i").itemsize)
    descriptors = array.array("i")
    with contextlib.suppress(ConnectionError):  # it has left something unread
        head, ancillary, _, _ = channel.recvmsg(LENGTH.size, room)
        for _, _, data in ancillary:
            descriptors.frombytes(data)
        head += _receive_exactly(channel, LENGTH.size - len(head))
        if len(head) == LENGTH.size:
            (length,) = LENGTH.unpack(head)
            body = _receive_exactly(channel, length)
            if len(body) == length:
                return ForkRequest(*json.loads(body)), list(descriptors)
    for descriptor in descriptors:
        os.close(descriptor)
    return None


def _receive_exactly(channel: socket.socket, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        piece = channel.recv(length - len(data))
        if not piece:
            break
        data += piece
    return bytes(data)


def send_event(line: socket.socket, word: str, number: int) -> None:
    """One line of text; that nobody listens any more is no error."""
    with contextlib.suppress(OSError):
        line.send(f"{word} {number}\n".encode(), socket.MSG_NOSIGNAL)


def parse_event(text: bytes) -> dict[str, int]:
    """What was told so far, by word."""
    lines = (line.split() for line in text.decode().splitlines())
    return {word: int(number) for word, number in lines}
