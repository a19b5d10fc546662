"""Agents without processes, many in one process, each with its c10d endpoint, for a benchmark.

Each command is a line of JSON on stdin; each answer is a line of JSON on stdout.

    {"do": "join", "names": [...]}   Connect these workers; answer with their ports when all run.
    {"do": "bytes"}                  Answer with the bytes between the agents and the service so far.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.tcp_bytes import bytes_with

from ddpjob_agent.net.c10d_relay import StoreRelay
from ddpjob_agent.net.service_connection import ServiceConnection
from ddpjob_agent.net.sockets.descriptors import raise_limit
from ddpjob_agent.worker.decisions.orders import AgentState, follow, hello_message
from ddpjob_protocol.keys.credentials import JobKey
from ddpjob_protocol.messages.membership import Member

if TYPE_CHECKING:
    from ddpjob_protocol.messages.agent import Message


class Agent:
    """One agent."""

    def __init__(self, name: str, port: int, key: JobKey) -> None:
        self._state = AgentState(Member(name, uuid.uuid4().hex, "127.0.0.1", 1))
        self.link = ServiceConnection(
            "127.0.0.1", port, key.worker_keys(name).own, self._hello, self._obey
        )
        self.relay = StoreRelay(self.link)
        self.runs = asyncio.Event()

    def _hello(self) -> Message:
        return {**hello_message(self._state), "ready": True, "reports": []}

    def _obey(self, order: Message) -> None:
        follow(self._state, order, finished=False)
        if self._state.wanted and self._state.wanted.membership:
            self.link.bind_store(str(self._state.wanted.membership.id))
            self.runs.set()

    async def start(self) -> None:
        """Serve the endpoint, and connect."""
        await self.relay.start()
        self._running = asyncio.ensure_future(self.link.run())


async def main(key: JobKey) -> None:
    """Obey the commands until stdin ends."""
    raise_limit()
    port = int(sys.argv[1])
    reader = asyncio.StreamReader(limit=1 << 20)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    agents: list[Agent] = []
    while line := await reader.readline():
        command: dict[str, Any] = json.loads(line)
        answer: Any = bytes_with(port)
        if command["do"] == "join":
            agents = [Agent(name, port, key) for name in command["names"]]
            await asyncio.gather(*(agent.start() for agent in agents))
            await asyncio.gather(*(agent.runs.wait() for agent in agents))
            answer = [agent.relay.port for agent in agents]
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    asyncio.run(main(JobKey.parse(Path(os.environ["DDPJOB_KEYS"]).read_text())))
