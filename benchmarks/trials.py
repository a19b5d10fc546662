"""One trial: start a job on three nodes, do one change after another to it, wait for each group.

Waits are on conditions; the steps' own timestamps are measured, not those of their observation.
"""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from benchmarks.steps import Formed, StepLogs

from ddpjob_agent.membership.failures import HEALTHY_SECONDS

WORKLOADS = Path(__file__).resolve().parent / "workloads"
NODES = 3
REST_SECONDS = 2.0  # of steps before each change: long enough for every peer to come to rest
PATIENCE_SECONDS = 120.0  # until a job steps at all
POLL_SECONDS = 0.2


class TrialError(Exception):
    """A job did not do what it must before anything can be measured."""


class Change(enum.Enum):
    """A change to a job; SIGKILL and SIGSTOP reach all processes of a node at once."""

    KILL = "SIGKILL of a node"
    FREEZE = "SIGSTOP of a node"
    CUT = "silent loss of a node, all its packets dropped"
    PROCESS = "SIGKILL of a training process"
    JOIN = "a node is added"
    LEAVE = "a node is asked to leave"


class Measure(enum.Enum):
    """A measure of a change."""

    SECONDS = "change → first step of the new group"
    STALL = "stall, last step of the old group → first step of the new one"
    DECIDED = "change → new membership is known"
    AFTER = "new membership is known → first step"
    STARTED = "change → new processes have started"
    STEPPED = "new processes → first step"


class Job(Protocol):
    """A training job on three nodes, with one process on each, which write steps to a folder."""

    @property
    def stays(self) -> bool:
        """True if processes continue without one that died; else all of them start again."""

    async def start(self) -> None:
        """Start it; returns before it steps."""

    async def apply(self, change: Change, node: int) -> float:
        """Do it to the n-th oldest node; returns the time just before."""

    def bury(self) -> None:
        """SIGKILL the node that fell silent, frozen or cut off."""

    def is_over(self) -> bool:
        """Return whether no process of it is left that could still step."""

    def service_bytes(self) -> int:
        """Resident memory of the process at which its nodes meet."""

    def decided(self, after: float) -> float | None:
        """Return when the job first knew a new group after that time; None if it does not report it."""

    async def stop(self) -> None:
        """Leave nothing running."""


@dataclasses.dataclass(frozen=True)
class Trial:
    """The result of one change."""

    change: Change
    at: float
    decided: float | None = None
    group: Formed | None = None  # None: not within the cap

    @property
    def seconds(self) -> float | None:
        """From the change to the first step of the new group."""
        return self.group.stepped - self.at if self.group else None

    def measures(self) -> Mapping[Measure, float | None]:
        """Return the measures that are known."""
        found: dict[Measure, float | None] = {Measure.SECONDS: self.seconds}
        if self.group is None:
            return found
        last, started, stepped = self.group
        found[Measure.STALL] = stepped - last
        if self.decided is not None:
            found |= {
                Measure.DECIDED: self.decided - self.at,
                Measure.AFTER: stepped - self.decided,
            }
        if started > self.at:
            found |= {Measure.STARTED: started - self.at, Measure.STEPPED: stepped - started}
        return found


async def measure(
    make: Callable[[Path], Job],
    changes: Sequence[Change],
    *,
    victim: int,
    cap: Callable[[Change], float],
    keep: Callable[[Trial], None],
) -> int:
    """Run one job, and change it; nodes suffer in turns, beginning with `victim`.

    `keep` gets each trial; one that the job does not recover from is the last. Returns
    `service_bytes()`.
    """
    with tempfile.TemporaryDirectory(prefix="ddpjob-bench-") as name:
        folder = Path(name)
        job, logs = make(folder), StepLogs(folder)
        try:
            await job.start()
            world, memory = NODES, 0
            group = await _group(job, logs, world, after=0.0, seconds=PATIENCE_SECONDS)
            for number, change in enumerate(changes):
                await _rest(job, logs, world, group, folder, rest_before(change))
                memory = memory or job.service_bytes()
                at = await job.apply(change, (victim + number) % NODES)
                world = _world_after(change, job)
                fresh = change is Change.PROCESS and world == NODES
                group = await _group(job, logs, world, at, cap(change), fresh=fresh)
                keep(Trial(change, at, job.decided(at), group))
                if group is None:
                    break
                job.bury()
            return memory
        finally:
            await job.stop()


def _world_after(change: Change, job: Job) -> int:
    comes_back = change is Change.PROCESS and not job.stays
    return NODES if change is Change.JOIN or comes_back else NODES - 1


async def _group(
    job: Job, logs: StepLogs, world: int, after: float, seconds: float, *, fresh: bool = False
) -> Formed | None:
    deadline = (after or time.time()) + seconds
    while time.time() < deadline and not job.is_over():
        logs.update()
        group = logs.group(world, after, fresh=fresh)
        if group is not None:
            return group
        await asyncio.sleep(POLL_SECONDS)
    return None


def rest_before(change: Change) -> float:
    """Return the seconds of steps before a change; ddpjob backs off if a process fails earlier."""
    return HEALTHY_SECONDS + 1.0 if change is Change.PROCESS else REST_SECONDS


async def _rest(
    job: Job, logs: StepLogs, world: int, group: Formed | None, folder: Path, seconds: float
) -> None:
    """Let a group step for a while; that it does not is a failure."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while group is None or not logs.are_stepping(world, group.stepped + seconds):
        if group is None or job.is_over() or time.monotonic() > deadline:
            why = "ended" if job.is_over() else f"does not step on {world} nodes"
            raise TrialError(f"the job {why}\n{_logs(folder)}")
        await asyncio.sleep(POLL_SECONDS)
        logs.update()


def _logs(folder: Path) -> str:
    files = sorted(folder.rglob("*.log"))
    return "\n".join(f"--- {f.name}\n{f.read_text(errors='replace')[-2000:]}" for f in files)
