"""The rendezvous service as a real process, with agents that have no processes."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import uuid
from typing import TYPE_CHECKING, Any

from ddpjob_agent.c10d.protocol import Op, Request
from ddpjob_agent.net.service_connection import ServiceConnection
from ddpjob_operator.local.simulated.rendezvous_process import free_port
from ddpjob_operator.rendezvous.client import (
    ServiceClient,
    ServiceUnavailableError,
    connect_directly,
)
from ddpjob_protocol.codec import decode, encode
from ddpjob_protocol.environment import ENV_MEMORY_BYTES
from ddpjob_protocol.messages.agent import PROTOCOL, Message
from ddpjob_protocol.messages.control import Expectation, Policy, Report
from ddpjob_protocol.messages.membership import Member, Membership
from support.agents import start_agent
from support.keys import KEY, credential, service_file

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from support.forked import Program

PATIENCE_SECONDS = 60.0
PATIENT = Policy(settle=0, heartbeat_deadline=PATIENCE_SECONDS)
IMPATIENT = Policy(settle=0, heartbeat_deadline=4.0)  # where it is to run out


class Service:
    """The process; `kill` and `start` are a restart of its container."""

    def __init__(self, folder: Path, memory: int | None = None) -> None:
        self.port = free_port()
        self._limits = {} if memory is None else {ENV_MEMORY_BYTES: str(memory)}
        self._boots = folder / "boots"
        self._keys = service_file(folder)
        self.process: Program

    def start(self) -> None:
        self.process = start_agent(
            "rendezvous", "--port", str(self.port), "--boot-file", str(self._boots),
            env={**os.environ, "DDPJOB_KEYS": self._keys, **self._limits},
        )  # fmt: skip

    async def ended(self) -> int:
        """Wait for its exit code."""
        return await asyncio.to_thread(self.process.wait, PATIENCE_SECONDS)

    async def kill(self) -> None:
        self.process.kill()
        await self.ended()


def hello_of(worker: str) -> Message:
    """Return the first message of an agent."""
    return {
        "type": "hello",
        "protocol": PROTOCOL,
        "member": dataclasses.asdict(Member(worker, uuid.uuid4().hex, "127.0.0.1", 1)),
        "membership": None,
        "running": False,
        "live": False,
        "ready": False,
        "finished": False,
        "stops": False,
        "done": False,
        "failure": None,
        "reports": [],
    }


def frame(message: Message) -> bytes:
    """Return the frame of a message."""
    data = json.dumps(message).encode()
    return len(data).to_bytes(4, "big") + data


class Agent:
    """The connection of an agent: follows orders, without processes."""

    def __init__(self, worker: str, port: int, host: str = "127.0.0.1") -> None:
        self.member = Member(worker, uuid.uuid4().hex, "127.0.0.1", 1)
        self.membership: Membership | None = None
        self.seal = ""
        self.running = False
        self.orders: list[str] = []
        self.known: Message = {}  # further fields of its hello when it returns
        self.link = ServiceConnection(host, port, credential(worker), self._hello, self._obey)
        self.task = asyncio.ensure_future(self.link.run())

    def _hello(self) -> Message:
        return {
            **hello_of(self.member.worker),
            "member": dataclasses.asdict(self.member),
            "membership": encode(self.membership),
            "seal": self.seal,
            "running": self.running,
            **self.known,
        }

    def _obey(self, order: Message) -> None:
        self.orders.append(order["type"])
        self.running = order["type"] == "run"
        if self.running:
            self.membership = decode(Membership, order["membership"])
            self.seal = order["seal"]
            self.link.bind_store(str(self.membership.id))

    async def do(self, op: Op, *keys: bytes, values: tuple[bytes, ...] = (), n: int = 0) -> bytes:
        assert self.membership is not None
        request = Request(op, keys, values, n)
        return await self.link.execute(request, str(self.membership.id))

    async def add(self, key: bytes, amount: int) -> int:
        return int.from_bytes(await self.do(Op.ADD, key, n=amount), "little", signed=True)


class Job:
    """A service with a client and agents."""

    def __init__(self, folder: Path, memory: int | None = None) -> None:
        self.service = Service(folder, memory)
        self.client = ServiceClient(connect_directly("127.0.0.1", self.service.port), KEY.operator)
        self.agents: list[Agent] = []

    def agent(self, worker: str, port: int | None = None) -> Agent:
        self.agents.append(Agent(worker, port or self.service.port))
        return self.agents[-1]

    async def expect(self, *workers: str, policy: Policy = PATIENT) -> None:
        await until(lambda: self.client.expect(Expectation(workers, policy=policy)))

    async def report(self) -> Report:
        found: Report = await until(self.client.report)
        return found

    async def formed(self, n: int) -> None:
        """Wait until every agent runs the n-th membership."""

        async def all_run() -> None:
            at = [a.membership.id.round if a.membership and a.running else 0 for a in self.agents]
            if set(at) != {n}:
                raise ServiceUnavailableError(f"memberships {at}")

        await until(all_run)


async def until(attempt: Callable[[], Awaitable[Any]]) -> Any:
    """The first answer."""
    deadline = asyncio.get_running_loop().time() + PATIENCE_SECONDS
    while True:
        try:
            return await attempt()
        except ServiceUnavailableError:
            if asyncio.get_running_loop().time() > deadline:
                raise
            await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def a_job(folder: Path, memory: int | None = None) -> AsyncIterator[Job]:
    job = Job(folder, memory)
    job.service.start()
    try:
        yield job
    finally:
        for agent in job.agents:
            agent.task.cancel()
        await asyncio.gather(*(agent.task for agent in job.agents), return_exceptions=True)
        await job.service.kill()


def run(body: Callable[[Job], Awaitable[None]], folder: Path, memory: int | None = None) -> None:
    """Run the body with a job, whose service has this much memory for its limits."""

    async def main() -> None:
        async with a_job(folder, memory) as job:
            await asyncio.wait_for(body(job), 2 * PATIENCE_SECONDS)

    asyncio.run(main())
