"""The physical limits, measured with Python, torch and a few processes.

Of a cold start: from starting two fresh processes at once to the first step that both completed.
Of a change in memory: see `workloads/regroup.py`. No launcher, no rendezvous, no detection.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TypeVar

from benchmarks.processes import Processes
from benchmarks.steps import StepLogs
from benchmarks.trials import NODES, PATIENCE_SECONDS, REST_SECONDS, Change, Trial, TrialError

from ddpjob_operator.local.simulated.rendezvous_process import free_port, is_free

POLL_SECONDS = 0.05
T = TypeVar("T")


class _Probe:
    """A few processes, and what they wrote."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.logs = StepLogs(folder)
        self.processes = Processes(folder)

    async def until(self, condition: Callable[[], T | None]) -> T:
        """The condition's first result that is true."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (result := condition()):
            if time.monotonic() > deadline:
                raise TrialError("plain processes do not form a group")
            await asyncio.sleep(POLL_SECONDS)
            self.logs.update()
        return result


@contextlib.asynccontextmanager
async def _probe() -> AsyncIterator[_Probe]:
    with tempfile.TemporaryDirectory(prefix="ddpjob-bench-") as name:
        probe = _Probe(Path(name))
        try:
            yield probe
        finally:
            await probe.processes.stop()


async def cold_start() -> float:
    """Seconds for as many processes as survive the loss of one node."""
    world = NODES - 1
    async with _probe() as probe:
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        started = time.time()
        for rank in range(world):
            ranks = {"RANK": str(rank), "WORLD_SIZE": str(world)}
            await probe.processes.start("step_forever.py", probe.folder, **meeting, **ranks)
        group = await probe.until(lambda: probe.logs.group(world, started))
        return group.stepped - started


async def regroup(size: str) -> list[Trial]:
    """One process of three is killed, one that has waited joins, and leaves again."""
    async with _probe() as probe:
        logs, port = probe.logs, free_port()
        await probe.processes.start("host_store.py", port)
        await probe.until(lambda: not is_free(port))
        started = [
            await probe.processes.start("regroup.py", probe.folder, port, number, size)
            for number in range(NODES + 1)
        ]
        await probe.until(lambda: logs.started() == len(started))
        first = await probe.until(lambda: logs.group(NODES, 0.0))
        await probe.until(lambda: logs.are_stepping(NODES, first.stepped + REST_SECONDS))
        killed = time.time()
        os.kill(started[NODES - 1].pid, signal.SIGKILL)
        lost = await probe.until(lambda: logs.group(NODES - 1, killed))
        joined = await probe.until(lambda: logs.group(NODES, lost.stepped))
        left = await probe.until(lambda: logs.group(NODES - 1, joined.stepped))
        return [
            Trial(Change.KILL, killed, group=lost),
            Trial(Change.JOIN, joined.last, group=joined),
            Trial(Change.LEAVE, left.last, group=left),
        ]
