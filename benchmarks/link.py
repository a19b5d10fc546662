"""The cost of the link: one rendezvous service with up to 1,000 workers.

The service is the real process. Its agents are connections without processes, in two processes
(`workloads/link_stubs.py`); the operator's long poll runs beside them. CPU and memory are those of
the service alone: while nothing changes, with steps, at a loss and at a join. A delay is the time
from the end of a worker's connection until another worker has its order.

    make bench-link                  10, 30, 100, 300 and 1,000 workers; some four minutes
    QUICK=1 make bench-link          10 and 30 workers; under a minute
    .venv/bin/python benchmarks/link.py --markdown    the last results for docs/benchmarks.md
    .venv/bin/python benchmarks/link.py --plot        the same as docs/link.svg
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

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
RESULT, PLOT = ROOT / "results" / "link.json", ROOT.parent / "docs" / "link.svg"
STUBS = ROOT / "workloads" / "link_stubs.py"
SIZES, SMOKE = (10, 30, 100, 300, 1000), (10, 30)
KEY = JobKey(bytes(KEY_BYTES))
SETTLE_SECONDS, WINDOW_SECONDS, QUICK_SECONDS = 2.0, 10.0, 3.0
CHANGES = 5  # losses, and joins
STEPS_PER_SECOND = 5
POLL_SECONDS = 10.0  # of the operator
PATIENCE_SECONDS = 120.0
POLICY = Policy(join_policy="Immediate", settle=0)
IDLE, STEPS = "CPU of the service, heartbeats only", "CPU of the service, 5 steps/s per worker"
MEMORY, PEAK = "Memory (RSS) of the service, heartbeats only", "Memory (RSS) of the service, peak"
START = "Start: first worker connects → all have their order"
MEDIAN, P99, LAST = (f"Loss: killed → order, {who}" for who in ("median", "p99", "last survivor"))
JOINED = "Join: new worker connects → order, last worker"
LOSS_CPU, JOIN_CPU = "CPU time of the service for a loss", "CPU time of the service for a join"
BYTES = "Order to each survivor of a loss"
BEATS = "Heartbeats answered, per worker, heartbeats only"
BEATS_STEPS = "Heartbeats answered, per worker, with steps"
STEP_RATE = "Steps sent, per worker"
UNITS = {
    IDLE: "cores", STEPS: "cores", MEMORY: "MB", PEAK: "MB", START: "s", MEDIAN: "s", P99: "s",
    LAST: "s", JOINED: "s", LOSS_CPU: "s", JOIN_CPU: "s", BYTES: "kB",
    BEATS: "per s", BEATS_STEPS: "per s", STEP_RATE: "per s",
}  # fmt: skip
GOALS = {IDLE: 0.25, LAST: 1.0}  # of the largest job

Samples = dict[str, list[float | None]]


class LinkError(Exception):
    """The service lost a worker that lives, or did not answer."""


class Stubs:
    """A process with stubs."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def do(self, **command: Any) -> dict[str, Any]:
        """Give a command and return the answer."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        line = await asyncio.wait_for(self._process.stdout.readline(), PATIENCE_SECONDS)
        if not line:
            raise LinkError("the process of the stubs ended")
        answer: dict[str, Any] = json.loads(line)
        return answer


class Job:
    """One service with its stubs, and the number of the newest membership."""

    def __init__(self, service: psutil.Process, client: ServiceClient, stubs: list[Stubs]) -> None:
        self.service = service
        self.client = client
        self.stubs = stubs
        self.names: list[str] = []
        self.holders: dict[str, Stubs] = {}
        self.round = 0
        self.order_bytes = 0.0  # of the newest order, on average

    async def all(self, **command: Any) -> list[dict[str, Any]]:
        """Give a command to all processes with stubs."""
        return await asyncio.gather(*(each.do(**command) for each in self.stubs))

    async def join(self, names: Sequence[str], kept: Sequence[str]) -> float:
        """Let workers join, and return when they began to."""
        self.names = [*kept, *names]
        await self.client.expect(Expectation(tuple(self.names), policy=POLICY))
        began = time.monotonic()
        parts = [names[number :: len(self.stubs)] for number in range(len(self.stubs))]
        joins = list(zip(self.stubs, parts, strict=True))
        self.holders.update((name, holder) for holder, part in joins for name in part)
        await asyncio.gather(*(each.do(do="join", names=part) for each, part in joins))
        return began

    async def ordered(self) -> list[float]:
        """Return when each worker got the order of the next membership."""
        self.round += 1
        answers = await self.all(do="wait", round=self.round)
        closed = [name for answer in answers for name in answer["closed"]]
        if closed:
            raise LinkError(f"the service closed the connection of {closed[:3]}")
        times = sorted(at for answer in answers for at in answer["at"])
        self.order_bytes = sum(answer["bytes"] for answer in answers) / len(times)
        return times

    def cpu(self) -> float:
        """Seconds of CPU time of the service so far."""
        times = self.service.cpu_times()
        return times.user + times.system

    async def load(self, seconds: float) -> tuple[float, float, float]:
        """Return the cores of the service, and what each worker sent a second: beats and steps.

        Only heartbeats with an answer count, so a service that lags behind shows.
        """
        began, before, counted = time.monotonic(), self.cpu(), await self.all(do="count")
        await asyncio.sleep(seconds)
        used, lasted = self.cpu() - before, time.monotonic() - began
        after, share = await self.all(do="count"), lasted * len(self.names)
        beats, steps = (
            sum(each[kind] for each in after) - sum(each[kind] for each in counted)
            for kind in ("beats", "steps")
        )
        return used / lasted, beats / share, steps / share

    def peak_mb(self) -> float:
        """Return the highest memory so far."""
        lines = Path(f"/proc/{self.service.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024 / 1e6


def main() -> int:
    """Run the benchmark, or show its last results."""
    console = Console(highlight=False)
    if print_if_asked(RESULT):
        return 0
    if "--plot" not in sys.argv[1:]:
        quick = is_set("QUICK")
        sizes = [int(each) for each in os.environ.get("SIZES", "").split()]
        try:
            _measure_all(sizes or (SMOKE if quick else SIZES), quick, console)
        except (LinkError, ServiceUnavailableError, TimeoutError) as error:
            console.print(f"failed: {error!r}", markup=False)
            return 1
        if quick:
            return 0
    from benchmarks.link_plot import draw  # noqa: PLC0415 - matplotlib, for this alone

    draw(json.loads(RESULT.read_text()), PLOT)
    return 0


def _measure_all(sizes: Sequence[int], quick: bool, console: Console) -> None:
    facts, found = machine(), {}
    for size in sizes:
        console.print(f"{size} workers")
        found[size] = asyncio.run(measure(size, quick=quick))
    result = {
        "name": "link", "quick": quick, "machine": facts, "versions": versions("ddpjob"),
        "notes": ["No worker that lived was lost."],
        "figures": [each.to_json() for each in figures(found)],
    }  # fmt: skip
    hand_in(result, RESULT, console)


def figures(found: Mapping[int, Samples]) -> list[Figure]:
    """Return one table for each measure, one row for each size; the largest job has the goals."""
    rows = []
    for name, unit in UNITS.items():
        for size in sorted(found, reverse=True):
            label = f"{size:,} workers"
            goal = GOALS.get(name) if size == max(SIZES) else None
            rows.append(Figure(name, unit, label, {label: found[size][name]}, goal))
    return rows


async def measure(size: int, *, quick: bool) -> Samples:
    """Measure one job of this size."""
    names = [f"link-worker-{number:04}-1" for number in range(size)]
    seconds = QUICK_SECONDS if quick else WINDOW_SECONDS
    samples: Samples = {name: [] for name in UNITS}
    async with a_job() as job:
        began = await job.join(names, ())
        samples[START].append((await job.ordered())[-1] - began)
        await asyncio.sleep(SETTLE_SECONDS)
        cores, beats, _ = await job.load(seconds)
        samples[IDLE].append(cores)
        samples[BEATS].append(beats)
        samples[MEMORY].append(job.service.memory_info().rss / 1e6)
        await job.all(do="steps", rate=STEPS_PER_SECOND)
        await asyncio.sleep(1)
        cores, beats, steps = await job.load(seconds)
        samples[STEPS].append(cores)
        samples[BEATS_STEPS].append(beats)
        samples[STEP_RATE].append(steps)
        await job.all(do="steps", rate=0)
        for number in range(CHANGES):
            await asyncio.sleep(SETTLE_SECONDS)
            killed = job.names[(number * 7) % size]
            await _lose(job, killed, samples)
            await asyncio.sleep(SETTLE_SECONDS)
            await _replace(job, killed, f"link-worker-{number:04}-2", samples)
        samples[PEAK].append(job.peak_mb())
        await _check(job)
    return samples


async def _lose(job: Job, name: str, samples: Samples) -> None:
    before = job.cpu()
    job.names.remove(name)
    began = (await job.holders[name].do(do="kill", name=name))["at"]
    delays = [at - began for at in await job.ordered()]
    samples[LOSS_CPU].append(job.cpu() - before)
    samples[MEDIAN].append(delays[len(delays) // 2])
    samples[P99].append(delays[int(0.99 * (len(delays) - 1))])
    samples[LAST].append(delays[-1])
    samples[BYTES].append(job.order_bytes / 1e3)


async def _replace(job: Job, old: str, new: str, samples: Samples) -> None:
    """Let a new worker join in the place of a lost one."""
    before = job.cpu()
    began = await job.join([new], job.names)
    samples[JOINED].append((await job.ordered())[-1] - began)
    samples[JOIN_CPU].append(job.cpu() - before)
    assert old not in job.names


async def _check(job: Job) -> None:
    """Raise LinkError if memberships were formed for another reason."""
    causes = [each.cause for each in (await job.client.report()).memberships]
    if causes != ["started", *["lost", "joined"] * CHANGES]:
        raise LinkError(f"a worker that lives was lost: {causes}")


@contextlib.asynccontextmanager
async def a_job() -> AsyncIterator[Job]:
    """Start a service, two processes with stubs and the operator's long poll."""
    port = free_port()
    client = ServiceClient(connect_directly("127.0.0.1", port), KEY.operator)
    with tempfile.TemporaryFile() as log, tempfile.NamedTemporaryFile("w") as keys:
        keys.write(KEY.to_text())
        keys.flush()
        environment = {**os.environ, "DDPJOB_KEYS": keys.name}
        service = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "ddpjob_agent", "rendezvous", "--host", "127.0.0.1",
            "--port", str(port), env=environment, stderr=log,
        )  # fmt: skip
        stubs = [
            await asyncio.create_subprocess_exec(
                sys.executable, str(STUBS), str(port), env=environment,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=1 << 24,
            )
            for _ in range(2)
        ]  # fmt: skip
        polling = asyncio.ensure_future(_poll(client))
        try:
            await _answers(client)
            yield Job(psutil.Process(service.pid), client, [Stubs(each) for each in stubs])
        finally:
            polling.cancel()
            for process in (*stubs, service):
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()


async def _answers(client: ServiceClient) -> None:
    for _ in range(200):
        with contextlib.suppress(ServiceUnavailableError):
            await client.report()
            return
        await asyncio.sleep(0.05)
    raise LinkError("the service does not answer")


async def _poll(client: ServiceClient) -> None:
    """Read the report as the operator does."""
    version = 0
    while True:
        try:
            version = (await client.report(version, POLL_SECONDS, only_news=True)).version
        except ServiceUnavailableError:
            await asyncio.sleep(0.1)


if __name__ == "__main__":
    sys.exit(main())
