"""Nodes of one live process each, which a test brings together in memberships as it wants."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from ddpjob_agent.c10d.server import StoreBackend, serve_client
from ddpjob_agent.c10d.store import Store
from ddpjob_agent.worker.processes.live_processes import LiveProcesses
from ddpjob_protocol.environment import ENV_GROUP_SOCKET, ENV_LIVE, ENV_STORE
from ddpjob_protocol.messages.membership import Cause, Member, Membership, MembershipId
from ddpjob_protocol.messages.process import Assignment
from support.conducting import PATIENCE_SECONDS
from support.forked import Forks, Program


class Node:
    """A node's agent and its process."""

    def __init__(self, key: str, agent: LiveProcesses, process: Program, output: Path) -> None:
        self.key = key
        self.agent = agent
        self.process = process
        self._output = output

    @property
    def output(self) -> str:
        """The text that the process has printed."""
        return self._output.read_text()

    @property
    def has_ended(self) -> bool:
        """True if the process has ended, in whatever way."""
        return self.process.poll() is not None

    async def end(self) -> int:
        """Wait for the process; return its exit code."""
        return await asyncio.to_thread(self.process.wait)


class Nodes:
    """All nodes, and the membership of some."""

    def __init__(self, forks: Forks, folder: Path, env: Mapping[str, str]) -> None:
        self._forks = forks
        self._folder = folder
        self._env = env
        self._all: list[Node] = []
        self._number = 0  # of the membership

    async def start(self, script: str, *arguments: object) -> Node:
        """Start a process, which waits for a membership."""
        key = f"node-{len(self._all)}"
        agent = LiveProcesses(
            1, lambda _: None, lambda _: None, lambda _: None, PATIENCE_SECONDS
        )  # fmt: skip
        path = self._folder / f"{key}.sock"
        await agent.listen(str(path))
        output = self._folder / f"{key}.output"
        with output.open("w") as file:
            process = self._forks.start(
                script,
                *arguments,
                env={**self._env, ENV_GROUP_SOCKET: str(path)},
                folder=self._folder,
                output=file,
                errors=file,
            )
        self._all.append(Node(key, agent, process, output))
        return self._all[-1]

    def assign(self, *members: Node) -> str:
        """Replace the membership at once; return its name."""
        self._number += 1
        identity = MembershipId(1, 1, self._number)
        each = tuple(Member(node.key, node.key, "127.0.0.1", 1) for node in members)
        membership = Membership(identity, each, Cause.JOINED, "")
        for rank, node in enumerate(members):
            node.agent.assign(Assignment(membership, rank))
        return str(identity)

    async def close(self) -> None:
        """End all processes."""
        for node in self._all:
            node.process.kill()
            await node.end()
            node.agent.close()


@contextlib.asynccontextmanager
async def nodes(forks: Forks, folder: Path, env: Mapping[str, str]) -> AsyncIterator[Nodes]:
    """Serve the nodes until the end of the block."""
    backend = StoreBackend(Store())
    server = await asyncio.start_server(
        lambda reader, writer: serve_client(reader, writer, backend), "127.0.0.1", 0
    )
    port = server.sockets[0].getsockname()[1]
    given = Nodes(forks, folder, {**env, ENV_LIVE: "1", ENV_STORE: f"127.0.0.1:{port}"})
    try:
        yield given
    finally:
        await given.close()
        server.close()
