"""mpirun's helpers over a store: a worker runs the lines of its membership, and no other."""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddpjob_agent.c10d.client import StoreClient
from ddpjob_agent.launchers import mpi
from ddpjob_agent.launchers.mpi_helpers import END, NO_HOST
from ddpjob_protocol.messages.membership import Member
from support.keys import PEERS

PATIENCE_SECONDS = 120
STORE = """
import asyncio
from ddpjob_agent.net.c10d_relay import LocalStore
async def main():
    store = LocalStore()
    await store.start()
    print(store.port, flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""
MEMBERS = tuple(Member(name, name, "127.0.0.1", 1) for name in ("a", "b"))


@pytest.fixture
def store() -> Iterator[str]:
    """The address of a store that a process serves."""
    with subprocess.Popen(
        [sys.executable, "-c", STORE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        yield f"127.0.0.1:{process.stdout.readline().strip()}"
        process.kill()


@contextlib.contextmanager
def follower(folder: Path, store: str, key: bytes) -> Iterator[dict[str, str]]:
    """Worker b; the environment of worker a in the same membership."""
    agent = (sys.executable, "-m", "ddpjob_agent")
    found = {}
    for name in ("a", "b"):
        (folder / name).mkdir()
        given = mpi.build_environment(MEMBERS, agent, str(folder / name), store, key)
        found[name] = {**os.environ, **given, "DDPJOB_WORKER": name}
    process = subprocess.Popen([*agent, "mpi-follow"], env=found["b"])
    try:
        yield found["a"]
        with contextlib.closing(StoreClient(store)) as client:
            client.set(END, "")
        assert process.wait(PATIENCE_SECONDS) == 0
    finally:
        process.kill()
        process.wait()


def call(command: list[str], environment: dict[str, str]) -> int:
    return subprocess.call(command, env=environment, timeout=PATIENCE_SECONDS)


def test_a_line_of_mpirun_is_run(tmp_path: Path, store: str) -> None:
    with follower(tmp_path, store, mpi.key_of(PEERS.key, "1.1.1")) as environment:
        shell = environment["PRTE_MCA_plm_ssh_agent"].split()
        line = f"touch {tmp_path / 'here'}; exit 3"
        assert call([*shell, "b", line], environment) == 3
        assert (tmp_path / "here").exists()


def test_a_line_without_the_code_is_not_run(tmp_path: Path, store: str) -> None:
    """A process of another user has the store, and not the key; a recorded line has another place."""
    with contextlib.ExitStack() as stack:
        key = mpi.key_of(PEERS.key, "1.1.1")
        environment = stack.enter_context(follower(tmp_path, store, key))
        shell = environment["PRTE_MCA_plm_ssh_agent"].split()
        count = tmp_path / "count"
        run = [*shell, "b", f"echo once >> {count}"]
        assert call(run, environment) == 0
        client = stack.enter_context(contextlib.closing(StoreClient(store)))
        recorded = client.get("mpi/b/1")
        other = tmp_path / "other"
        for line in (f"touch {other}", f"{'0' * 64} touch {other}", recorded, ""):
            place = f"mpi/b/{client.add('mpi/b', 1)}"
            client.set(place, line)
            assert client.get(f"{place}/code") == str(NO_HOST)
        assert not other.exists()
        assert count.read_text() == "once\n"


def test_only_the_agents_user_reads_the_key(tmp_path: Path) -> None:
    for membership in ("1.1.1", "1.1.2"):
        key = mpi.key_of(PEERS.key, membership)
        mpi.build_environment(MEMBERS, ("agent",), str(tmp_path), "127.0.0.1:1", key)
        assert (tmp_path / mpi.KEY_FILE).read_bytes() == key
    assert stat.S_IMODE((tmp_path / mpi.KEY_FILE).stat().st_mode) == 0o600
    assert mpi.key_of(PEERS.key, "1.1.1") != mpi.key_of(PEERS.key, "1.1.2")
