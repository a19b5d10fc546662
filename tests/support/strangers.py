"""Asks TCP ports what they give to a stranger: to a peer without a key of their job.

Standard library only: the text of this module also runs in a pod, as `python3 -c TEXT HOST:PORT...`.
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
from typing import NamedTuple

SECONDS = 60.0
MAGIC = b"DDPJ2"
HELLO = b'{"type":"hello"}'
HTTP = "{} HTTP/1.1\r\nContent-Length: 0\r\n\r\n"
NONCE = (7).to_bytes(4, "little")
STORE = b"\x00" + (0x3C85F7CE).to_bytes(4, "little") + b"\x0d" + NONCE
# A handshake with a wrong proof, and a message after it.
HANDSHAKE = MAGIC + bytes(16) + b"\x01a" + bytes(32) + len(HELLO).to_bytes(4, "big") + HELLO
PROVEN = len(MAGIC) + 16 + 32  # bytes: the nonce of the other side, and its proof


class Answers(NamedTuple):
    """The answers of one port; all are empty if the port closes each connection."""

    report: str = ""  # to a request of the operator: the status
    expected: str = ""
    health: str = ""
    handshake: int = 0  # to that of an agent: the number of bytes
    store: str = ""  # to a client of torch's store: the bytes


SERVICE = Answers("403", "403", "200", PROVEN)
TRANSFER = Answers(handshake=PROVEN)
CONNECTIVITY = Answers()
LOCAL_STORE = Answers(store=NONCE.hex())  # for processes of the agent's user only


def ask(address: tuple[str, int], data: bytes, most: int = 0) -> bytes:
    """Return everything that a port sends after these bytes, or the first `most` bytes."""
    found = b""
    with contextlib.suppress(OSError), socket.create_connection(address, SECONDS) as peer:
        peer.sendall(data)
        if not most:  # a store refuses a connection that is half closed
            peer.shutdown(socket.SHUT_WR)
        while (not most or len(found) < most) and (data := peer.recv(1 << 16)):
            found += data
    return found


def status(answer: bytes) -> str:
    """Return the status of an answer in HTTP."""
    words = answer.split(b" ", 2)
    return words[1].decode() if words[0].startswith(b"HTTP/") else ""


def answers(address: tuple[str, int]) -> Answers:
    """Ask a port in each language that a pod of a job speaks."""
    return Answers(
        report=status(ask(address, HTTP.format("GET /report").encode())),
        expected=status(ask(address, HTTP.format("PUT /expected").encode())),
        health=status(ask(address, HTTP.format("GET /healthz").encode())),
        handshake=len(ask(address, HANDSHAKE)),
        store=ask(address, STORE, len(NONCE)).hex(),
    )


def main(*places: str) -> None:
    """Print the answers of each HOST:PORT, as JSON."""
    hosts = [place.rpartition(":") for place in places]
    found = [answers((host, int(port))) for host, _, port in hosts]
    sys.stdout.write(f"{json.dumps(found)}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
