"""The request for a fork: one JSON object with descriptors, over a Unix socket.

The last descriptor connects the new process to the requester. It carries lines of text: the new
process sends `pid N` once it has its own session; the fork server sends `exit CODE` if it reaps the
process.
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
LINE_BYTES = 64  # longer than all events of one process
PID, EXIT = "pid", "exit"
# The greeting of a fork server on the request socket: `ready` and, in JSON, its Python and the
# environment in which it imported torch; or `unfit` and the reason.
READY, UNFIT = "ready", "unfit"
# Kinds of requests. The process that runs torchrun becomes a child of the agent, and may request
# programs. The fork of an agent executes the agent, with its own fork server as a child.
TORCHRUN, PROGRAM, AGENT = "torchrun", "program", "agent"


class ForkRequest(NamedTuple):
    """A request for one forked process."""

    kind: str
    arguments: list[str]  # those after `python -u`; for an agent, the whole command line
    environment: dict[str, str]
    directory: str
    network: str = ""  # file of an agent's network namespace; empty for the server's


def send(channel: socket.socket, request: ForkRequest, descriptors: list[int]) -> None:
    """Send a request; block until the kernel has accepted all of its bytes."""
    body = json.dumps(request).encode()
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
    channel.sendmsg([LENGTH.pack(len(body))], [rights])
    channel.sendall(body)


def receive(channel: socket.socket) -> tuple[ForkRequest, list[int]] | None:
    """Return the next whole request; None if the other side has disconnected."""
    room = socket.CMSG_SPACE(FDS * array.array("i").itemsize)
    descriptors = array.array("i")
    with contextlib.suppress(ConnectionError):  # the other side closed with unread data
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
    """Send one line of text; ignore a disconnected reader."""
    with contextlib.suppress(OSError):
        line.send(f"{word} {number}\n".encode(), socket.MSG_NOSIGNAL)


def parse_event(text: bytes) -> dict[str, int]:
    """Return the number of each event in the text, by event name."""
    lines = (line.split() for line in text.decode().splitlines())
    return {word: int(number) for word, number in lines}
