"""Agents that are started by a process that has imported torch: as if executed, but for the parent."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from ddpjob_agent.forkserver.agents import AgentForkServer, ForkedAgent
from ddpjob_agent.forkserver.channel import AGENT, ForkRequest
from support.forking import imports

# In place of an agent: records its start, and ends on a line of the test.
AGENT_PROGRAM = """
import json, os, pathlib, signal, socket, sys, time
descriptor, parent = map(int, os.environ["DDPJOB_WARM_PARENT"].split())
def children():
    return pathlib.Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
facts = {
    "argv": sys.argv, "directory": os.getcwd(), "stdin": sys.stdin.read(), "own": os.environ["OWN"],
    "leads": os.getsid(0) == os.getpid(), "ignored": [str(n) for n in signal.valid_signals()
        if signal.getsignal(n) == signal.SIG_IGN],
    "said": socket.socket(fileno=os.dup(descriptor)).recv(100).decode(),
    "parent is the only child": children() == [str(parent)],
    "parent shows": pathlib.Path(f"/proc/{parent}/environ").read_bytes().decode().split("\\0"),
    "descriptors": sorted(map(int, os.listdir("/proc/self/fd")))[:-1], "given": descriptor,
}
pathlib.Path("facts.new").write_text(json.dumps(facts))
os.rename("facts.new", "facts")
print("to the log", flush=True)
end = pathlib.Path("end")
while not end.exists():
    time.sleep(0.01)
sys.exit(int(end.read_text()))
"""
IGNORED = """
import signal
print(*(str(n) for n in signal.valid_signals() if signal.getsignal(n) == signal.SIG_IGN), sep=",")
"""
ARGV = ["torchrun", "train.py"]


@pytest.fixture
def with_server(
    fork_server: Path,
) -> Callable[[Callable[[AgentForkServer], Awaitable[None]]], None]:
    def run(body: Callable[[AgentForkServer], Awaitable[None]]) -> None:
        async def within() -> None:
            server = AgentForkServer(os.devnull, str(fork_server))
            try:
                await body(server)
            finally:
                server.close()

        asyncio.run(within())

    return run


async def started(server: AgentForkServer, folder: Path) -> ForkedAgent:
    """An agent that has written its facts."""
    command = [sys.executable, "-c", AGENT_PROGRAM, "worker", "--", *ARGV]
    request = ForkRequest(AGENT, command, {**imports(), "OWN": "ü", "TMPDIR": "/else"}, str(folder))
    with (folder / "log").open("ab") as log:
        agent = await server.start(request, log.fileno(), ARGV, imports())
    assert agent is not None
    while not (folder / "facts").exists():
        assert agent.returncode is None, (folder / "log").read_text()
        await asyncio.sleep(0.01)
    return agent


WithServer = Callable[[Callable[[AgentForkServer], Awaitable[None]]], None]


def test_an_agent_is_as_if_executed_and_has_a_warm_parent(
    tmp_path: Path, with_server: WithServer
) -> None:
    async def body(server: AgentForkServer) -> None:
        agent = await started(server, tmp_path)
        facts = json.loads((tmp_path / "facts").read_text())
        (tmp_path / "end").write_text("7")
        assert await agent.wait() == agent.returncode == 7
        assert facts["argv"] == ["-c", "worker", "--", *ARGV]
        assert facts["directory"] == str(tmp_path)
        assert (facts["stdin"], facts["own"], facts["said"]) == ("", "ü", "ready\n")
        assert facts["leads"]
        assert facts["parent is the only child"]
        assert "OWN=ü" in facts["parent shows"]
        assert facts["descriptors"][:4] == [0, 1, 2, facts["given"]]
        executed = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", IGNORED),
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        printed, _ = await executed.communicate()
        assert ",".join(facts["ignored"]) == printed.decode().strip()
        assert (tmp_path / "log").read_text() == "to the log\n"

    with_server(body)


def test_signals_reach_it_and_its_end_is_reported(tmp_path: Path, with_server: WithServer) -> None:
    async def body(server: AgentForkServer) -> None:
        agent = await started(server, tmp_path)
        agent.terminate()
        assert await agent.wait() == -signal.SIGTERM
        agent.kill()  # does nothing to a process that has its id now

    with_server(body)


def test_agents_end_with_the_run_that_wanted_them(tmp_path: Path, with_server: WithServer) -> None:
    async def body(server: AgentForkServer) -> None:
        agent = await started(server, tmp_path)
        server.close()
        assert await agent.wait() == -signal.SIGTERM

    with_server(body)


def test_what_torch_would_not_be_imported_for_alike_is_refused(
    tmp_path: Path, with_server: WithServer
) -> None:
    """Such an agent is executed, and imports torch itself."""
    other = tmp_path / "torchrun"
    other.write_text("#!/usr/bin/python3\n")
    other.chmod(0o755)

    async def body(server: AgentForkServer) -> None:
        for argv, environment in (
            (ARGV, {**imports(), "OMP_NUM_THREADS": "3"}),
            ([str(other), "train.py"], imports()),
            (["python3", "train.py"], imports()),
        ):
            request = ForkRequest(AGENT, ["false"], environment, str(tmp_path))
            assert await server.start(request, 1, argv, environment) is None

    with_server(body)


def test_its_own_server_ends_with_it_and_so_do_agents(tmp_path: Path) -> None:
    """Killed, perhaps without memory: agents get SIGTERM, and later agents are executed."""

    async def body() -> None:
        server = AgentForkServer(str(tmp_path / "server.log"))
        agent = await started(server, tmp_path)
        assert server.process is not None
        server.process.kill()
        assert await agent.wait() == -signal.SIGKILL  # the kind of process is unknown
        request = ForkRequest(AGENT, ["false"], imports(), str(tmp_path))
        assert await server.start(request, 1, ARGV, imports()) is None
        server.close()
        assert (tmp_path / "server.log").read_text() == ""

    asyncio.run(body())
