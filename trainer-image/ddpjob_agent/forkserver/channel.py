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
import stat
import struct
from typing import NamedTuple

LENGTH = struct.Struct("!I")
FDS = 4  # stdin, stdout, stderr, line
MAX_BYTES = 16 << 20  # of a request; Linux takes 6 MiB of arguments and environment
PIECE_BYTES = 64 << 10  # a read takes the memory that it asks for
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
    """Return the next whole request, with FDS descriptors of which the last one is a socket.

    Return None if the other side has disconnected or sends something else.
    """
    room = socket.CMSG_SPACE(FDS * array.array("i").itemsize)
    descriptors = array.array("i")
    with contextlib.suppress(ConnectionError):  # the other side closed with unread data
        head, ancillary, _, _ = channel.recvmsg(LENGTH.size, room)
        for _, _, data in ancillary:
            descriptors.frombytes(data)
        head += _receive_exactly(channel, LENGTH.size - len(head))
        if len(head) == LENGTH.size:
            (length,) = LENGTH.unpack(head)
            body = _receive_exactly(channel, length) if length <= MAX_BYTES else b""
            request = _parse(body) if len(body) == length else None
            if request is not None and _are_whole(descriptors):
                return request, list(descriptors)
    for descriptor in descriptors:
        os.close(descriptor)
    return None


def _parse(body: bytes) -> ForkRequest | None:
    try:
        kind, arguments, environment, directory, network = json.loads(body)
    except (RecursionError, TypeError, ValueError):
        return None
    is_request = kind in (TORCHRUN, PROGRAM, AGENT) and _are_texts([directory, network])
    if not is_request or not arguments or not _are_texts(arguments):
        return None
    if type(environment) is not dict or not _are_texts([*environment.values()]):
        return None
    return ForkRequest(kind, arguments, environment, directory, network)


def _are_texts(values: object) -> bool:
    return type(values) is list and all(type(each) is str for each in values)


def _are_whole(descriptors: array.array[int]) -> bool:
    return len(descriptors) == FDS and stat.S_ISSOCK(os.fstat(descriptors[-1]).st_mode)


def _receive_exactly(channel: socket.socket, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        piece = channel.recv(min(length - len(data), PIECE_BYTES))
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
