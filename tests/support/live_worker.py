"""The live processes of one worker without a service: the test assigns their memberships."""

from __future__ import annotations

import asyncio
import contextlib
import json
import textwrap
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from ddpjob_agent.c10d.server import StoreBackend, serve_client
from ddpjob_agent.c10d.store import Store
from ddpjob_agent.worker.processes.live_processes import LiveProcesses
from ddpjob_protocol.environment import ENV_GROUP_SOCKET, ENV_LIVE, ENV_STORE
from ddpjob_protocol.messages.membership import Cause, Member, Membership, MembershipId
from ddpjob_protocol.messages.process import Assignment
from support.forked import Forks, Program, environment

PATIENCE_SECONDS = 120.0

# Each process appends its rows to a file of its own; the model has one weight, and one loss.
PROLOGUE = """
import json, os, pathlib, subprocess, sys, torch
import torch.distributed as dist
from ddpjob_trainer import ElasticBatchSampler, Loop, Stream
torch.set_num_threads(1)
local_rank = os.environ.get("LOCAL_RANK", "0")

def tell(**row):
    with open(f"rows-{local_rank}", "a") as file:
        file.write(json.dumps(row) + "\\n")

def wait_for(name):
    pathlib.Path(f"waits-{name}").touch()
    subprocess.run(["sh", "-c", f"until [ -e {name} ]; do sleep 0.05; done"], check=True)

net = torch.nn.Linear(1, 1, bias=False)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

def train(loop, step):
    optimizer.zero_grad()
    loop.model(torch.ones(1, 1)).sum().backward()
    optimizer.step()
"""


class LiveWorker:
    """Two processes, the agent's side of them, and the rows that they have written."""

    def __init__(
        self,
        folder: Path,
        agent: LiveProcesses,
        programs: list[Program],
        messages: list[dict[str, Any]],
        stuck: list[bool],
    ) -> None:
        self.folder = folder
        self.agent = agent
        self.programs = programs
        self.messages = messages  # of the agent to the service
        self.stuck = stuck  # whether a state was left, each time that processes were given up

    def assign(self, n: int) -> None:
        """Assign the n-th membership: the same worker again."""
        members = (Member("only", "first", "127.0.0.1", len(self.programs)),)
        membership = Membership(MembershipId(1, 1, n), members, Cause.LOST, "")
        self.agent.assign(Assignment(membership))

    def rows(self, local_rank: int) -> list[dict[str, Any]]:
        """Return the rows of a process."""
        path = self.folder / f"rows-{local_rank}"
        return [*map(json.loads, path.read_text().splitlines())] if path.exists() else []

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until the condition holds."""
        deadline = asyncio.get_running_loop().time() + PATIENCE_SECONDS
        while not condition():
            assert asyncio.get_running_loop().time() < deadline, f"never: {what}\n{self.story()}"
            await asyncio.sleep(0.02)

    async def codes(self) -> list[int | None]:
        """Return the exit codes, when all processes have ended."""
        await self.until(lambda: all(p.poll() is not None for p in self.programs), "all ended")
        return [program.poll() for program in self.programs]

    def finished(self) -> int:
        """Return the number of processes that have done all steps."""
        return sum(message["type"] == "finished" for message in self.messages)

    def story(self) -> str:
        """Return what the processes printed, and their rows, for a failing test."""
        paths = [*self.folder.glob("errors-*"), *self.folder.glob("rows-*")]
        return "\n".join(f"--- {path.name}\n{path.read_text()}" for path in sorted(paths))


@contextlib.asynccontextmanager
async def live_worker(
    folder: Path, forks: Forks, body: str, stuck_seconds: float = PATIENCE_SECONDS, **env: str
) -> AsyncIterator[LiveWorker]:
    """Two processes that run PROLOGUE and the body; those that are left are killed at the end."""
    (folder / "train.py").write_text(PROLOGUE + textwrap.dedent(body))
    messages: list[dict[str, Any]] = []
    stuck: list[bool] = []
    agent = LiveProcesses(2, messages.append, stuck.append, lambda _: None, stuck_seconds)
    await agent.listen(str(folder / "group.sock"))
    backend = StoreBackend(Store())
    server = await asyncio.start_server(
        lambda reader, writer: serve_client(reader, writer, backend), "127.0.0.1", 0
    )
    store = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    variables = {
        **environment(),
        ENV_GROUP_SOCKET: str(folder / "group.sock"),
        ENV_LIVE: "1",
        ENV_STORE: store,
        **env,
    }
    programs: list[Program] = []
    for rank in range(2):
        with (folder / f"errors-{rank}").open("w") as errors:
            own = {**variables, "LOCAL_RANK": str(rank)}
            programs.append(
                await asyncio.to_thread(
                    forks.start, "train.py", env=own, folder=folder, errors=errors
                )
            )
    worker = LiveWorker(folder, agent, programs, messages, stuck)
    try:
        worker.assign(1)
        yield worker
    finally:
        for program in programs:
            program.kill()
            program.wait()
        server.close()
        agent.close()
