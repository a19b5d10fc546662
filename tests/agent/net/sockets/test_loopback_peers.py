"""Other users of the machine cannot use the c10d endpoints of an agent."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ddpjob_agent.net.c10d_relay import LocalStore
from ddpjob_agent.net.sockets.loopback_peers import Entry, kernel_address, read_tables, uid_of

NOBODY = 65534
A, B = "0100007F:1F90", "0100007F:C350"

# torch's store client: it sends VALIDATE, then PING with a nonce, and reads the nonce back.
CLIENT = """
import encodings.idna, os, socket, struct, sys
os.setuid(int(sys.argv[2]))
answer = b""
family, host = {"4": (socket.AF_INET, "127.0.0.1"), "6": (socket.AF_INET6, "::ffff:127.0.0.1")}[sys.argv[3]]
with socket.socket(family) as client:
    try:
        client.connect((host, int(sys.argv[1])))
        client.sendall(bytes([0]) + struct.pack("=I", 0x3C85F7CE) + bytes([13]) + struct.pack("=I", 7))
        answer = client.recv(4)
    except ConnectionError:
        pass
sys.exit(0 if answer == struct.pack("=I", 7) else 7)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("family", ["4", "6"])  # torch uses a socket of IPv6 for both
def test_a_process_of_another_user_is_refused(family: str) -> None:
    async def connect_as(user: int, port: int) -> int:
        command = [sys.executable, "-S", "-c", CLIENT, str(port), str(user), family]
        return (await asyncio.to_thread(subprocess.run, command, check=False)).returncode

    async def body() -> None:
        store = LocalStore()
        await store.start()
        try:
            assert await connect_as(0, store.port) == 0
            assert await connect_as(NOBODY, store.port) == 7
        finally:
            store._server.close()

    asyncio.run(body())


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (Entry(A, B, "01", 1000), 1000),
        (Entry(A, B, "05", 0), None),  # closed by its process: the kernel shows root
        (Entry(B, A, "01", 1000), None),
    ],
)
def test_only_an_established_connection_has_a_user(entry: Entry, expected: int | None) -> None:
    assert uid_of([entry], A, B) == expected


def test_addresses_are_those_of_the_kernel() -> None:
    assert kernel_address("127.0.0.1", 8080) == A


def test_a_machine_without_a_table_has_no_entries(tmp_path: Path) -> None:
    assert read_tables((str(tmp_path / "none"),)) == []
