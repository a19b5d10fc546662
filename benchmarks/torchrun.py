"""The cost of torchrun's rendezvous: up to 128 participants in our store, and in torch's own.

Each participant is torch's DynamicRendezvousHandler with a store client of its own, many in two
processes. With ours, each has an agent with its c10d endpoint (`net/c10d_relay.py`), all in one
process, and they share one rendezvous service; both are the real code. The time is that from the
common start until the last participant has its rank. Before its first round torchrun waits up to
0.3 s, at random.

    make bench-torchrun              8, 64 and 128 participants; some five minutes
    QUICK=1 make bench-torchrun      8 participants
    SIZES="256" make bench-torchrun      others; with torch's store these take long
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

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
RESULT = ROOT / "results" / "torchrun.json"
SIZES, SMOKE = (8, 64, 128), (8,)
KEY = JobKey(bytes(KEY_BYTES))
PATIENCE_SECONDS = 600.0
OURS, TORCH = "ddpjob", "torch's TCPStore"
TIME, CPU, AGENTS, NODES, BYTES = (
    "Rendezvous: start → last participant has its rank",
    "CPU time of the store's process",
    "CPU time of all agents (relays)",
    "CPU time of all participants",
    "Bytes to and from the store's process",
)
UNITS = {TIME: "s", CPU: "s", AGENTS: "s", NODES: "s", BYTES: "MB"}


class Run(NamedTuple):
    """One rendezvous."""

    seconds: float
    cpu: float
    agents: float
    nodes: float
    megabytes: float

    def of(self, name: str) -> float:
        """Return one of its figures."""
        return self[list(UNITS).index(name)]


class RendezvousError(Exception):
    """A participant has no rank, or two have the same."""


class Process:
    """A process that answers commands."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def read(self) -> Any:
        """Return the next answer."""
        assert self.process.stdout
        line = await asyncio.wait_for(self.process.stdout.readline(), PATIENCE_SECONDS)
        if not line:
            raise RendezvousError("a process of the benchmark ended")
        return json.loads(line)

    async def do(self, **command: Any) -> Any:
        """Give a command and return the answer."""
        assert self.process.stdin
        self.process.stdin.write(json.dumps(command).encode() + b"\n")
        return await self.read()

    def cpu(self) -> float:
        """Return the seconds of CPU time so far."""
        times = psutil.Process(self.process.pid).cpu_times()
        return times.user + times.system


def main() -> int:
    """Run the benchmark, or show its last results."""
    console = Console(highlight=False)
    if print_if_asked(RESULT):
        return 0
    quick = is_set("QUICK")
    sizes = [int(each) for each in os.environ.get("SIZES", "").split()]
    repeats = 1 if quick else int(os.environ.get("REPEATS", "3"))
    facts, found = machine(), {}
    try:
        for size in sizes or (SMOKE if quick else SIZES):
            console.print(f"{size} participants")
            found[size] = asyncio.run(measure(size, repeats))
    except (RendezvousError, ServiceUnavailableError, TimeoutError) as error:
        console.print(f"failed: {error!r}", markup=False)
        return 1
    result = {
        "name": "torchrun", "quick": quick, "machine": facts, "versions": versions("ddpjob", "torch"),
        "notes": ["All participants and agents share the machine with the store."],
        "figures": [each.to_json() for each in figures(found)],
    }  # fmt: skip
    hand_in(result, RESULT, console)
    return 0


def figures(found: dict[int, dict[str, list[Run]]]) -> list[Figure]:
    """Return one table for each measure, one row for each size."""
    rows = []
    for name, unit in UNITS.items():
        for size in sorted(found, reverse=True):
            label = f"{OURS}, {size:,} participants"
            samples: dict[str, list[float | None]] = {
                label: [r.of(name) for r in found[size][OURS]]
            }
            if name != AGENTS:
                samples[f"{TORCH}, {size:,} participants"] = [
                    run.of(name) for run in found[size][TORCH]
                ]
            rows.append(Figure(name, unit, label, samples))
    return rows


async def measure(size: int, repeats: int) -> dict[str, list[Run]]:
    """Measure rendezvous of this size in both stores, in turns."""
    found: dict[str, list[Run]] = {OURS: [], TORCH: []}
    for _ in range(repeats):
        found[OURS].append(await in_ours(size))
        found[TORCH].append(await in_torch(size))
    return found


async def in_ours(size: int) -> Run:
    """Measure one rendezvous in a membership of a job."""
    port = free_port()
    client = ServiceClient(connect_directly("127.0.0.1", port), KEY.operator)
    names = tuple(f"worker-{number:04}" for number in range(size))
    async with contextlib.AsyncExitStack() as stack:
        service = await stack.enter_async_context(
            started("-m", "ddpjob_agent", "rendezvous", "--host", "127.0.0.1", "--port", str(port))
        )
        agents = await stack.enter_async_context(started(_workload("torchrun_agents"), str(port)))
        await expect(client, names)
        ports = await agents.do(do="join", names=names)
        return await rendezvous(stack, service, ports, port, agents)


async def in_torch(size: int) -> Run:
    """Measure one rendezvous in a TCPStore of torch."""
    async with contextlib.AsyncExitStack() as stack:
        store = await stack.enter_async_context(started(_workload("torch_store")))
        port = await store.read()
        return await rendezvous(stack, store, [port] * size, port, None)


async def rendezvous(
    stack: contextlib.AsyncExitStack,
    store: Process,
    ports: Sequence[int],
    store_port: int,
    agents: Process | None,
) -> Run:
    """Let a participant join at each of these ports, half of them in each process."""
    nodes = [
        await stack.enter_async_context(started(_workload("torchrun_nodes"))) for _ in range(2)
    ]
    connecting = (
        each.do(do="connect", ports=ports[number::2], run="job", total=len(ports))
        for number, each in enumerate(nodes)
    )
    await asyncio.gather(*connecting)

    async def count() -> list[float]:
        if agents:
            carried = await agents.do(do="bytes")
        else:
            carried = sum([await each.do(do="bytes", port=store_port) for each in nodes])
        used = [each.cpu() if each else 0.0 for each in (store, agents)]
        return [*used, sum(each.cpu() for each in nodes), carried / 1e6]

    before, began = await count(), time.monotonic()
    answers = await asyncio.gather(*(each.do(do="rendezvous") for each in nodes))
    after = await count()
    failed = [error for answer in answers for error in answer[2]]
    ranks = sorted(rank for answer in answers for rank in answer[1])
    if failed or ranks != list(range(len(ports))):
        raise RendezvousError(f"ranks {ranks[:5]}…, errors {failed[:2]}")
    ended = max(at for answer in answers for at in answer[0])
    store_cpu, agents_cpu, nodes_cpu, carried = (b - a for a, b in zip(before, after, strict=True))
    return Run(ended - began, store_cpu, agents_cpu, nodes_cpu, carried)


async def expect(client: ServiceClient, names: tuple[str, ...]) -> None:
    """Send the workers of the job once the service answers."""
    for _ in range(600):
        with contextlib.suppress(ServiceUnavailableError):
            await client.expect(Expectation(names, policy=Policy(settle=0, heartbeat_deadline=600)))
            return
        await asyncio.sleep(0.05)
    raise RendezvousError("the service does not answer")


@contextlib.asynccontextmanager
async def started(*arguments: str) -> AsyncIterator[Process]:
    """Run Python with these arguments, and kill it at the end."""
    with tempfile.NamedTemporaryFile("w", delete=False) as keys:
        keys.write(KEY.to_text())
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, env={**os.environ, "DDPJOB_KEYS": keys.name},
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL, limit=1 << 24,
    )  # fmt: skip
    try:
        yield Process(process)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        os.unlink(keys.name)  # noqa: PTH108 - in an event loop


def _workload(name: str) -> str:
    return str(ROOT / "workloads" / f"{name}.py")


if __name__ == "__main__":
    sys.exit(main())
