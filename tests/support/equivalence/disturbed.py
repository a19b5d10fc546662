"""Trains a task with ddpjob at level L2, while workers come and go or undisturbed.

Two workers have one process, one has two: with one to three workers, one to four processes.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from benchmarks.trials import WORKLOADS
from benchmarks.workloads.pace import PACE

from ddpjob_protocol.environment import ENV_PROCESSES
from support.driving import Run, job_text, running
from support.equivalence.curves import Trained, read

WORKERS = 3  # at most
MANNERS = ("kill", "drain", "process")  # in which a worker is lost, or leaves
NEVER = 10**9
# The share of steps by whose end all has happened: more may be done before what happens is settled.
BUSY = 0.75

SPEC = {
    "elastic": "{settleSeconds: 0.2}",
    "failurePolicy": "{backoffSeconds: 0.1, maxRestarts: {application: 100}}",
    "processesPerWorker": 1,
}


class Lesson(NamedTuple):
    """The task, and the way to train it."""

    task: str
    seed: int
    epochs: int
    shards: int | None = None  # deterministic mode
    harm: str = "none"
    at: int = 0  # the step of the harm

    def arguments(self) -> list[str]:
        """Return the arguments of `live_task.py`."""
        shards = [] if self.shards is None else [f"--shards={self.shards}"]
        return [
            self.task, f"--seed={self.seed}", f"--epochs={self.epochs}", *shards,
            f"--harm={self.harm}", f"--at={self.at}",
        ]  # fmt: skip


class Shape(NamedTuple):
    """Workers of an undisturbed run."""

    single: int  # with one process
    double: int = 0  # with two

    @property
    def workers(self) -> int:
        """All of them."""
        return self.single + self.double

    @property
    def processes(self) -> int:
        """Number of all processes."""
        return self.single + 2 * self.double


UNDISTURBED = (Shape(1), Shape(2), Shape(1, 1), Shape(2, 1))
WHOLE = UNDISTURBED[-1]


def draw(seed: int, count: int) -> list[str]:
    """Draw `count` changes, one after the other; a worker always stays."""
    chance, workers, found = random.Random(seed), WORKERS, list[str]()
    while len(found) < count:
        options = [*(MANNERS if workers > 1 else ()), *(["join"] * 2 if workers < WORKERS else ())]
        found.append(chance.choice(options))
        workers += {"join": 1, "process": 0}.get(found[-1], -1)
    return found


async def train(lesson: Lesson, shape: Shape = WHOLE, events: Sequence[str] = ()) -> Trained:
    """From the first step to the last; events are spread over the steps."""
    with tempfile.TemporaryDirectory(prefix="ddpjob-bench-") as name:
        folder = Path(name)
        (folder / PACE).write_text(str(0 if events else NEVER))
        command = ["torchrun", str(WORKLOADS / "live_task.py"), name, *lesson.arguments()]
        words = f"[{', '.join(map(repr, command))}]"
        group = f"{{name: two, replicas: 1, processesPerWorker: 2, command: {words}}}"
        groups = f"[{group}]" if shape.double else "[]"
        text = job_text(
            words, replicas=shape.single, minReplicas=1, extraWorkerGroups=groups, **SPEC
        )
        async with running(folder, text, nodes=shape.workers, script="") as run:
            await _disturb(run, folder, random.Random(lesson.seed), events)
            state = await run.finish()
            assert state == "Complete", run.story()
            assert run.report.live, run.story()
        return read(folder)


async def _disturb(run: Run, folder: Path, chance: random.Random, events: Sequence[str]) -> None:
    if not events:
        return
    await run.until_stepping(1)
    steps = run.report.total_steps or 0
    for number, event in enumerate(events, 1):
        due = int(BUSY * steps * number / len(events))
        _go_on(folder, due)
        await run.until(partial(_has_come, run, due), f"step {due}")
        _go_on(folder, run.report.step or 0)
        memberships = len(run.report.memberships) + (2 if event == "process" else 1)
        await _do(run, event, chance.choice(run.backend.nodes.busy()))
        await run.until(partial(_is_settled, run, memberships), f"{event} is over")
    _go_on(folder, NEVER)


def _go_on(folder: Path, step: int) -> None:
    """At full speed until then."""
    new = folder / "pace.new"
    new.write_text(str(step))
    new.rename(folder / PACE)


async def _do(run: Run, event: str, node: str) -> None:
    nodes = run.backend.nodes
    match event:
        case "join":
            nodes.add()
        case "kill":
            nodes.kill(node)
        case "drain":
            nodes.drain(node)
        case "process":
            nodes.kill_process(node)


def _has_come(run: Run, step: int) -> bool:
    return (run.report.step or 0) >= step


def _is_settled(run: Run, memberships: int) -> bool:
    """All that can train does, in a membership that came after the event."""
    rounds, nodes = run.report.memberships, run.backend.nodes
    pods = [nodes.on(node) for node in nodes.up]
    if len(rounds) < memberships or None in pods:
        return False
    processes = sum(int(pod.environment[ENV_PROCESSES]) for pod in pods if pod)
    return rounds[-1].world_size == processes and bool(rounds[-1].last_step)
