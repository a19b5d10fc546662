"""A lack of descriptors: the limit is raised, and a listener survives it."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import subprocess
import sys

import pytest

from ddpjob_agent.net.sockets.descriptors import MOST_DESCRIPTORS, DescriptorReserve

LOW = 64


def in_a_child(program: str, soft: int = LOW, hard: int = MOST_DESCRIPTORS + 1) -> str:
    """Run a program of these limits; return what it prints."""
    _, own_hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limits = (soft, hard if own_hard == resource.RLIM_INFINITY else min(hard, own_hard))
    setting = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, {limits})\n"
    done = subprocess.run(
        [sys.executable, "-c", setting + program],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


RAISED = """
import resource, subprocess
from ddpjob_agent.net.sockets.descriptors import given_limit, raise_limit
raise_limit()
raise_limit()  # the second call does not forget the first limit
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0], flush=True)
with given_limit():
    subprocess.run(["sh", "-c", "ulimit -n"])
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


@pytest.mark.parametrize(
    ("soft", "hard", "raised"),
    [
        pytest.param(LOW, 256, 256, id="to the hard limit"),
        pytest.param(256, 256, 256, id="not above it"),
    ],
)
def test_the_limit_is_raised_and_a_child_has_the_one_before(
    soft: int, hard: int, raised: int
) -> None:
    assert in_a_child(RAISED, soft, hard).split() == [str(raised), str(soft), str(raised)]


FLOODED = """
import asyncio, os, socket
from ddpjob_agent.net.sockets.listening import Listener, bind

async def serve(reader, writer, authenticated):
    await reader.read()
    writer.close()

async def main():
    listener = Listener(bind("127.0.0.1", 0), serve)
    clients = [socket.socket() for _ in range(3)]
    for client in clients:
        client.setblocking(False)
    taken = []
    try:
        while True:
            taken.append(os.dup(0))
    except OSError:
        pass
    loop = asyncio.get_running_loop()
    for client in clients[:2]:
        await loop.sock_connect(client, listener.address)
        assert await loop.sock_recv(client, 1) == b"", "refused"
    for each in taken:
        os.close(each)
    await loop.sock_connect(clients[2], listener.address)
    await loop.sock_sendall(clients[2], b"x")
    clients[2].shutdown(socket.SHUT_WR)
    assert await loop.sock_recv(clients[2], 1) == b"", "served"
    listener.close()
    print("alive")

asyncio.run(main())
"""


def test_a_listener_without_descriptors_refuses_and_serves_later() -> None:
    assert in_a_child(FLOODED).split() == ["alive"]


def test_the_reserve_accepts_and_closes_one_connection() -> None:
    reserve = DescriptorReserve()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with socket.create_connection(listener.getsockname(), timeout=30) as client:
            assert reserve.refuse(listener)
            assert client.recv(1) == b""
        reserve.close()
        assert reserve.refuse(listener), "an empty reserve is filled again, and accepts nothing"
    reserve.close()


def test_a_listener_pauses_after_an_error_that_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that is not a lack of descriptors must not make the event loop spin."""
    from ddpjob_agent.net.sockets import listening

    monkeypatch.setattr(listening, "PAUSE_SECONDS", 0.0)

    class Failing(socket.socket):
        attempts = 0

        def accept(self) -> tuple[socket.socket, tuple[str, int]]:
            self.attempts += 1
            if self.attempts < 3:
                raise OSError(12, "no memory")
            return super().accept()

    async def serve(_: object, writer: asyncio.StreamWriter, _authenticated: object) -> None:
        writer.close()

    async def main() -> None:
        plain = listening.bind("127.0.0.1", 0)
        failing = Failing(fileno=plain.detach())
        listener = listening.Listener(failing, serve)
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        assert await reader.read() == b""
        assert failing.attempts == 3
        writer.close()
        listener.close()

    asyncio.run(main())
