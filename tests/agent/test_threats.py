"""A process in a worker, a stranger on the pod network: rows of SECURITY.md on real processes."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import subprocess
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent import thief
from agent.file_sync.keeping import SCRIPT, Job, Worker, keeping, snapshot
from ddpjob_agent.net.framing import FramingError, RejectedError, connect
from ddpjob_operator.local.simulated.processes import marked
from ddpjob_operator.rendezvous.client import (
    ServiceClient,
    ServiceUnavailableError,
    connect_directly,
)
from ddpjob_protocol.environment import GROUP_SOCKET, REPORT_SOCKET
from support.driving import in_background
from support.key_traces import keys_from, keys_in, keys_of
from support.keys import ANOTHER_KEY, KEY, credential
from support.strangers import (
    CONNECTIVITY,
    LOCAL_STORE,
    PROVEN,
    SERVICE,
    TRANSFER,
    Answers,
    answers,
    ask,
)

HOST = "127.0.0.1"
KEYS = keys_of(KEY, "ab")
# The capabilities of a container that runs as root and asks for none.
CAPABILITIES = (
    "chown dac_override fowner fsetid kill setgid setuid setpcap net_bind_service net_raw "
    "sys_chroot mknod audit_write setfcap"
)
STEALS = """
    import sys
    sys.path.insert(0, {tests!r})
    from agent import thief
    thief.main({keys!r}, {folder!r})
"""
CRASHES = "    thief.crash_the_agent()\n"

POD, LOOPBACK = "on the pod network", "on loopback"
OF_AN_AGENT = {POD: Counter([CONNECTIVITY, TRANSFER]), LOOPBACK: Counter({LOCAL_STORE: 2})}
# All ports on which processes of a job listen before the command's own, and their answers.
PORTS = {
    ("service", LOOPBACK): Counter([SERVICE]),
    **{(name, scope): found for name in "ab" for scope, found in OF_AN_AGENT.items()},
}


def in_a_container() -> list[str]:
    """Return the prefix of a command that has the capabilities of a container."""
    if os.geteuid() != 0:
        return []
    return ["setpriv", f"--bounding-set=-all,+{CAPABILITIES.replace(' ', ',+')}", "--inh-caps=-all"]


@dataclasses.dataclass
class Wire:
    """Forwards connections of agents to a service, and records both directions."""

    target: int
    port: int = 0
    sent: list[bytearray] = dataclasses.field(default_factory=list)  # by connection
    received: bytearray = dataclasses.field(default_factory=bytearray)

    tasks: list[asyncio.Task[None]] = dataclasses.field(default_factory=list)

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Begin to forward a connection."""
        self.tasks.append(asyncio.ensure_future(self._forward(reader, writer)))

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, requests = await asyncio.open_connection(HOST, self.target)
        self.sent.append(bytearray())
        await asyncio.gather(
            _pump(reader, requests, self.sent[-1]), _pump(answers, writer, self.received)
        )


async def _pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, record: bytearray
) -> None:
    with contextlib.suppress(ConnectionError), contextlib.closing(writer):
        while data := await reader.read(1 << 16):
            record += data
            writer.write(data)
            await writer.drain()


@contextlib.asynccontextmanager
async def recording(target: int) -> AsyncIterator[Wire]:
    wire = Wire(target)
    async with await asyncio.start_server(wire.accept, HOST, 0) as server:
        wire.port = server.sockets[0].getsockname()[1]
        try:
            yield wire
        finally:
            for task in wire.tasks:
                task.cancel()
            await asyncio.gather(*wire.tasks, return_exceptions=True)


@in_background
async def test_a_process_in_a_worker_and_a_stranger_get_no_key(tmp_path: Path) -> None:
    async with keeping(tmp_path, "a b", start=False) as job, recording(job.port) as wire:
        a, b = job.workers["a"], job.workers["b"]
        steals = STEALS.format(
            tests=str(Path(__file__).parents[1]),
            keys=str(tmp_path / "a.keys"),
            folder=str(a.folder),
        )
        a.script = steals + SCRIPT + CRASHES
        common = {"DDPJOB_LOG_LEVEL": "DEBUG", "DDPJOB_SERVICE": f"{HOST}:{wire.port}"}
        a.start(in_a_container(), DDPJOB_ADDRESS="127.0.0.2", **common)
        b.start(DDPJOB_ADDRESS="127.0.0.3", **common)
        await job.begun(1, "a b")
        a.write(snapshot(1))
        await job.kept()
        a_process_finds_no_key(a)
        await every_port_is_known(job)
        await the_traffic_shows_no_key(job, wire)
        await a_crash_leaves_no_key(job, a)
        logs = job.story()
        assert "ddpjob." in logs
        assert keys_in(logs, KEYS) == set()


def a_process_finds_no_key(worker: Worker) -> None:
    """Everything that the worker's own container shows to a process of the agent's user."""
    found = json.loads((worker.folder / "loot").read_text())
    assert set(found["done"]) == thief.ALLOWED.keys()
    assert set(found["sockets"]) == {GROUP_SOCKET, REPORT_SOCKET}
    assert found["inherited"] == []
    loot = bytes.fromhex(found["loot"])
    assert b"DDPJOB_REPORT_SOCKET" in loot
    assert keys_in(loot, KEYS) == set()
    assert keys_from(loot, KEYS, ["the job of a test"]) == set()


async def every_port_is_known(job: Job) -> None:
    """A stranger asks each of them; a new port needs a row here and one in SECURITY.md."""
    names = {worker.process.pid: worker.name for worker in job.workers.values()}
    names[job.service.pid] = "service"
    found: defaultdict[tuple[str, str], Counter[Answers]] = defaultdict(Counter)
    for process in marked(job.uid):
        owner = names.get(process.pid, "a process of the user")
        for each in process.net_connections("inet"):
            if each.status == "LISTEN":
                scope = LOOPBACK if each.laddr.ip == HOST else POD
                said = await asyncio.to_thread(answers, (each.laddr.ip, each.laddr.port))
                found[owner, scope][said] += 1
                if said != LOCAL_STORE:
                    with pytest.raises((FramingError, RejectedError, ConnectionError)):
                        await connect(*each.laddr, credential("a", ANOTHER_KEY))
    assert found == PORTS
    other = ServiceClient(connect_directly(HOST, job.port), ANOTHER_KEY.operator)
    with pytest.raises(ServiceUnavailableError, match="403"):
        await other.report()


async def the_traffic_shows_no_key(job: Job, wire: Wire) -> None:
    """All bytes between agents and service; the same bytes again open no session."""
    traffic = b"".join([*wire.sent, wire.received])
    assert b'"hello"' in traffic
    assert keys_in(traffic, KEYS) == set()
    assert keys_from(traffic, KEYS, ["the job of a test"]) == set()
    before = (await job.client.report()).workers
    for sent in map(bytes, wire.sent):
        assert len(await asyncio.to_thread(ask, (HOST, job.port), sent)) == PROVEN
    assert (await job.client.report()).workers == before == ("a", "b")


async def a_crash_leaves_no_key(job: Job, worker: Worker) -> None:
    """The process in the worker has the agent crash, with a limit that allows its memory on disk.

    The kernel writes the memory of neither agent nor service, because no process may read it.
    """
    for pid in (job.service.pid, worker.process.pid):
        reads = [*in_a_container(), "cat", f"/proc/{pid}/environ"]
        done = await asyncio.to_thread(subprocess.run, reads, capture_output=True, check=False)
        assert b"denied" in done.stderr
    (worker.folder / "end").touch()
    assert await asyncio.to_thread(worker.process.wait) == -signal.SIGSEGV
    for path in worker.folder.glob("core*"):
        assert keys_in(path.read_bytes(), KEYS) == set()
        raise AssertionError(f"{path.name} has the memory of the agent")
