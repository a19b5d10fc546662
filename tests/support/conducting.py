"""An agent without a job: it assigns memberships to live processes of one node, as a test wants."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

from ddpjob_agent.c10d.server import StoreBackend, serve_client
from ddpjob_agent.c10d.store import Store
from ddpjob_agent.worker.processes import live_processes
from ddpjob_protocol.environment import ENV_GROUP_SOCKET, ENV_LIVE, ENV_STORE
from ddpjob_protocol.messages.membership import Cause, Member, Membership, MembershipId
from ddpjob_protocol.messages.process import Assignment

PATIENCE_SECONDS = 240.0  # for a process to reach its next group


async def until(condition: Callable[[], bool], what: str) -> None:
    """Wait until it holds."""
    deadline = asyncio.get_running_loop().time() + PATIENCE_SECONDS
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, f"never: {what}"
        await asyncio.sleep(0.002)


class Conductor:
    """The agent; `env` is the environment of its processes."""

    def __init__(
        self, agent: live_processes.LiveProcesses, count: int, env: dict[str, str]
    ) -> None:
        self._agent = agent
        self._count = count
        self.env = env

    def process_env(self, local_rank: int) -> dict[str, str]:
        """Return the environment of one process."""
        return {**self.env, "LOCAL_RANK": str(local_rank)}

    def assign(self, n: int) -> None:
        """Replace the membership at once by the n-th one, with the same processes."""
        members = (Member("only", "first", "127.0.0.1", self._count),)
        membership = Membership(MembershipId(1, 1, n), members, Cause.JOINED, "")
        self._agent.assign(Assignment(membership))

    def end(self) -> None:
        """Let the processes leave."""
        self._agent.assign(Assignment(leave=True))


@contextlib.asynccontextmanager
async def conducting(
    folder: Path, env: Mapping[str, str], processes: int
) -> AsyncIterator[Conductor]:
    """Run the agent, and a store, until the end of the block."""
    given_up: list[bool] = []
    ended_early: list[int] = []
    agent = live_processes.LiveProcesses(
        processes, lambda _: None, given_up.append, ended_early.append, PATIENCE_SECONDS
    )
    await agent.listen(str(folder / "group.sock"))
    backend = StoreBackend(Store())
    server = await asyncio.start_server(
        lambda reader, writer: serve_client(reader, writer, backend), "127.0.0.1", 0
    )
    port = server.sockets[0].getsockname()[1]
    addresses = {
        ENV_GROUP_SOCKET: str(folder / "group.sock"),
        ENV_LIVE: "1",
        ENV_STORE: f"127.0.0.1:{port}",
    }
    try:
        yield Conductor(agent, processes, {**env, **addresses})
        assert not given_up, "a process was stuck"
        assert not ended_early, "a process has left the others alone"
    finally:
        server.close()
        agent.close()
