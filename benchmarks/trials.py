"""One trial: start a job on three nodes, SIGKILL one of them, wait for the group of the others.

Waits are on conditions; the steps' own timestamps are what is measured, not when they were seen.
"""

from __future__ import annotations

import asyncio
import dataclasses
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from benchmarks.steps import Formed, are_stepping, first_group

WORKLOADS = Path(__file__).resolve().parent / "workloads"
NODES = 3
WARM_STEPS = 100  # two seconds and more: long enough for every peer to have come to rest
PATIENCE_SECONDS = 120.0  # until a job steps at all
POLL_SECONDS = 0.2
DECIDED = "SIGKILL → new membership is known"
STARTED = "SIGKILL → new processes have started"
STEPPED = "new processes → first step"


class TrialError(Exception):
    """A job did not do what it must before anything can be measured."""


class Job(Protocol):
    """A training job on three nodes, with one process on each, which write steps to `folder`."""

    async def start(self) -> None:
        """Start it; returns before it steps."""

    def kill(self, node: int) -> float:
        """SIGKILL everything on a node at once; returns the time just before."""

    def is_over(self) -> bool:
        """Whether nothing is left of it that could still step."""

    def service_bytes(self) -> int:
        """Resident memory of the process at which its nodes meet."""

    def decided(self) -> float | None:
        """When the job knew its new group, in seconds since the epoch; None if it does not tell."""

    async def stop(self) -> None:
        """Leave nothing running."""


@dataclasses.dataclass(frozen=True)
class Trial:
    """What one trial gave."""

    service_bytes: int
    killed: float
    decided: float | None = None
    group: Formed | None = None  # None: not within the cap

    @property
    def seconds(self) -> float | None:
        """From SIGKILL to the first step of the new group."""
        return self.group.stepped - self.killed if self.group else None

    def phases(self) -> Mapping[str, float]:
        """Where the time went."""
        if self.group is None:
            return {}
        started, stepped = self.group
        known = {} if self.decided is None else {DECIDED: self.decided - self.killed}
        return {**known, STARTED: started - self.killed, STEPPED: stepped - started}


async def measure(make: Callable[[Path], Job], victim: int, cap: float) -> Trial:
    """Run one job, take one node from it."""
    with tempfile.TemporaryDirectory(prefix="ddpjob-bench-") as name:
        folder = Path(name)
        job = make(folder)
        try:
            await job.start()
            await _until_stepping(job, folder)
            memory = job.service_bytes()
            killed = job.kill(victim)
            group = await _until_recovered(job, folder, killed, cap)
            return Trial(memory, killed, job.decided() if group else None, group)
        finally:
            await job.stop()


async def _until_stepping(job: Job, folder: Path) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not are_stepping(folder, NODES, WARM_STEPS):
        if job.is_over() or time.monotonic() > deadline:
            why = "ended" if job.is_over() else f"is not stepping after {PATIENCE_SECONDS:g} s"
            raise TrialError(f"the job {why}\n{_logs(folder)}")
        await asyncio.sleep(POLL_SECONDS)


async def _until_recovered(job: Job, folder: Path, killed: float, cap: float) -> Formed | None:
    while time.time() < killed + cap and not job.is_over():
        group = first_group(folder, NODES - 1, after=killed)
        if group is not None:
            return group
        await asyncio.sleep(POLL_SECONDS)
    return None


def _logs(folder: Path) -> str:
    files = sorted(folder.rglob("*.log"))
    return "\n".join(f"--- {f.name}\n{f.read_text(errors='replace')[-2000:]}" for f in files)
