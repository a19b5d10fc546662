"""A job of many real agents: three losses and three joins.

The service is the real process, and so is each agent (`launcher: python`) with its command, a tiny
script that notes when it runs in a membership (`workloads/note_start.py`). A loss is SIGKILL to an
agent and its command. The time is that from the kill, or from the start of a new agent, until the
command of each survivor runs in the new membership; so the start of a command in each worker is
part of it. The benchmark stands for the operator: it names the expected workers.

    make bench-agents                100 agents
    QUICK=1 make bench-agents        20 agents
    SIZE=8 make bench-agents         another number
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.figures import Figure, is_set, machine, versions
from benchmarks.show import hand_in, print_if_asked

from ddpjob_operator.local.simulated.rendezvous_process import free_port
from ddpjob_operator.rendezvous.client import (
    ServiceClient,
    ServiceUnavailableError,
    connect_directly,
)
from ddpjob_protocol.keys.credentials import KEY_BYTES, JobKey
from ddpjob_protocol.messages.control import Expectation, Policy

ROOT = Path(__file__).resolve().parent
RESULT = ROOT / "results" / "agents.json"
NOTE_START = ROOT / "workloads" / "note_start.py"
SIZE, SMOKE, CHANGES = 100, 20, 3
KEY = JobKey(bytes(KEY_BYTES))
POLICY = Policy(join_policy="Immediate", settle=0)
PATIENCE_SECONDS, SETTLE_SECONDS = 300.0, 2.0
START = "Start: first agent starts → every command runs"
LOST = "Loss: agent killed → every survivor's command runs again"
JOINED = "Join: new agent starts → every command runs again"
AGENT, COMMAND, SERVICE = (
    f"Memory (USS) of {who}" for who in ("an agent", "its command", "the service")
)
UNITS = {START: "s", LOST: "s", JOINED: "s", AGENT: "MB", COMMAND: "MB", SERVICE: "MB"}


class AgentsError(Exception):
    """A worker that lives was lost, or a command did not start."""


class Job:
    """A service and its agents."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._notes = folder / "notes"
        self._notes.mkdir()
        self._port = free_port()
        self._client = ServiceClient(connect_directly("127.0.0.1", self._port), KEY.operator)
        self._service = self._start("service", KEY.to_text(), "rendezvous", "--port", self._port)
        self.agents: dict[str, subprocess.Popen[bytes]] = {}
        self._round = 0
        self.samples: dict[str, list[float | None]] = {name: [] for name in UNITS}

    def _start(
        self, name: str, keys: str, *arguments: object, **variables: str
    ) -> subprocess.Popen[bytes]:
        file = self._folder / f"{name}.keys"
        file.write_text(keys)
        return subprocess.Popen(
            [sys.executable, "-m", "ddpjob_agent", *map(str, arguments)],
            env={
                **os.environ,
                "DDPJOB_KEYS": str(file),
                "DDPJOB_LOG_LEVEL": "WARNING",
                **variables,
            },
            start_new_session=True,
        )

    async def join(self, *names: str) -> None:
        """Start agents, and record the time until all commands run in the new membership."""
        first = not self.agents
        await self._expect(*self.agents, *names)
        began = time.monotonic()
        for name in names:
            self.agents[name] = self._start(
                name, KEY.worker_keys(name).to_text(),
                "worker", "--", sys.executable, "-S", NOTE_START,
                NOTES=str(self._notes), DDPJOB_WORKER=name, DDPJOB_ADDRESS="127.0.0.1",
                DDPJOB_SERVICE=f"127.0.0.1:{self._port}", DDPJOB_PROCESSES="1",
                DDPJOB_LAUNCHER="python", DDPJOB_WARM_START="0",
            )  # fmt: skip
        self.samples[START if first else JOINED].append(await self._running() - began)

    async def lose(self, name: str) -> None:
        """Kill an agent and its command, and record the time until all others run again."""
        agent = self.agents.pop(name)
        began = time.monotonic()
        processes = [psutil.Process(agent.pid), *psutil.Process(agent.pid).children(recursive=True)]
        for each in processes:
            each.kill()
        agent.wait()
        self.samples[LOST].append(await self._running() - began)
        await self._expect(*self.agents)  # an operator may take long to see the end of a pod

    async def _expect(self, *names: str) -> None:
        until = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                await self._client.expect(Expectation(names, policy=POLICY))
            except ServiceUnavailableError:
                if time.monotonic() > until:
                    raise
                await asyncio.sleep(0.05)
            else:
                return

    async def _running(self) -> float:
        """Return when the last command began in the next membership."""
        self._round += 1
        until = time.monotonic() + PATIENCE_SECONDS
        notes = [self._notes / f"{self._round}.{name}" for name in self.agents]
        while missing := [each.name for each in notes if not each.exists()]:
            if time.monotonic() > until:
                raise AgentsError(f"{len(missing)} commands do not run, such as {missing[0]}")
            await asyncio.sleep(0.02)
        return max(float(each.read_text()) for each in notes)

    def weigh(self) -> None:
        """Record the memory of each process."""
        self.samples[SERVICE].append(_megabytes(psutil.Process(self._service.pid)))
        for agent in self.agents.values():
            process = psutil.Process(agent.pid)
            self.samples[AGENT].append(_megabytes(process))
            self.samples[COMMAND] += [_megabytes(each) for each in process.children()]

    async def check(self) -> None:
        """Raise AgentsError if memberships were formed for another reason."""
        causes = [each.cause for each in (await self._client.report()).memberships]
        if causes[0] != "started" or causes[1:] != ["lost", "joined"] * CHANGES:
            raise AgentsError(f"a worker that lives was lost: {causes}")

    def close(self) -> None:
        """End all processes."""
        for process in (*self.agents.values(), self._service):
            with contextlib.suppress(psutil.NoSuchProcess):
                found = psutil.Process(process.pid)
                for each in (found, *found.children(recursive=True)):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        each.kill()
            process.wait()


def _megabytes(process: psutil.Process) -> float:
    return float(process.memory_full_info().uss) / 1e6


@contextlib.asynccontextmanager
async def a_job() -> AsyncIterator[Job]:
    """Yield a job; its processes end with it."""
    with tempfile.TemporaryDirectory() as folder:
        job = Job(Path(folder))
        try:
            yield job
        finally:
            job.close()


async def measure(size: int) -> dict[str, list[float | None]]:
    """Measure one job of this size."""
    async with a_job() as job:
        await job.join(*(f"agents-worker-{number:03}-1" for number in range(size)))
        await asyncio.sleep(SETTLE_SECONDS)
        job.weigh()
        for number in range(CHANGES):
            await job.lose(f"agents-worker-{number * size // CHANGES:03}-1")
            await asyncio.sleep(SETTLE_SECONDS)
            await job.join(f"agents-worker-{number:03}-2")
            await asyncio.sleep(SETTLE_SECONDS)
        await job.check()
        return job.samples


def main() -> int:
    """Run the benchmark, or show its last results."""
    console = Console(highlight=False)
    if print_if_asked(RESULT):
        return 0
    quick = is_set("QUICK")
    size = int(os.environ.get("SIZE") or (SMOKE if quick else SIZE))
    facts, ours = machine(), f"{size} agents"
    try:
        samples = asyncio.run(measure(size))
    except (AgentsError, ServiceUnavailableError) as error:
        console.print(f"failed: {error!r}", markup=False)
        return 1
    rows = [Figure(name, unit, ours, {ours: samples[name]}) for name, unit in UNITS.items()]
    result = {
        "name": "agents", "quick": quick, "machine": facts, "versions": versions("ddpjob"),
        "notes": ["No worker that lived was lost."], "figures": [each.to_json() for each in rows],
    }  # fmt: skip
    hand_in(result, RESULT, console)
    return 0


if __name__ == "__main__":
    sys.exit(main())
