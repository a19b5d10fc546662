"""Runs jobs on the local back end for tests: waits on conditions in the report, never on time."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import textwrap
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path

from rich.console import Console

from ddpjob_operator.api import jobfile
from ddpjob_operator.local.backend import LocalBackend
from ddpjob_operator.local.record.timeline import Timeline
from ddpjob_operator.local.simulated.networks import NodeNetwork
from ddpjob_operator.local.simulated.processes import marked
from ddpjob_operator.local.state_dir import JobStateDir
from ddpjob_protocol.codec import decode
from ddpjob_protocol.messages.control import Report

PATIENCE_SECONDS = 240.0  # generous: the machine may be slow and shared

# Without torch, so that it is quick: each process steps until the file `end` appears.
SCRIPT = """
    import json, os, pathlib, socket, sys, time
    agent = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    end = pathlib.Path(sys.argv[1])
    def report(**what):
        agent.sendto(json.dumps(what).encode(), os.environ["DDPJOB_REPORT_SOCKET"])
    step = 0
    while not end.exists():
        step += 1
        report(event="step", step=step, total=1000000)
        time.sleep(0.1)
"""


def job_text(command: str, **spec: object) -> str:
    """A job file with one main group of workers."""
    alone = command.startswith(("[python", '["python'))
    launcher = {"launcher": "python"} if alone and "torch" not in command else {}
    fields = {"replicas": 3, "command": command, **spec, **({} if "launcher" in spec else launcher)}
    lines = "\n".join(f"  {name}: {value}" for name, value in fields.items())
    head = "apiVersion: ddpjob.io/v1alpha1\nkind: DDPJob\nmetadata: {name: probe}\nspec:\n"
    return head + lines + "\n"


def environment() -> dict[str, str]:
    """The environment of runs: the same for all of them, or they could not share a fork server."""
    changing = "PYTEST_CURRENT_TEST"
    kept = {name: value for name, value in os.environ.items() if name != changing}
    return {**kept, "OMP_NUM_THREADS": "1"}


class Run:
    """A job that runs in the background."""

    def __init__(self, folder: Path, text: str, nodes: int, network: NodeNetwork | None) -> None:
        self.state = JobStateDir(folder / "state", "default", "probe")
        self.state.lock()
        self.state.begin(fresh=False)
        self.console = io.StringIO()
        timeline = Timeline(Console(file=self.console), self.state.path / "timeline.jsonl")
        job = jobfile.parse(text)
        self.backend = LocalBackend(
            job, self.state, timeline, workdir=folder, nodes=nodes, network=network,
            environment=environment(),
        )  # fmt: skip
        self.end = folder / "end"
        self.task = asyncio.ensure_future(self.backend.run())

    @property
    def report(self) -> Report:
        """The newest report of the rendezvous service, also after its end."""
        return self.backend.report or decode(Report, self.state.read("report.json"))

    def history(self) -> list[tuple[str, int]]:
        """Cause and world size of every membership so far."""
        return [(each.cause, each.world_size) for each in self.report.memberships]

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until the condition holds, with everything known if it never does."""
        deadline = asyncio.get_running_loop().time() + PATIENCE_SECONDS
        while not condition():
            if self.task.done():
                await self.task
                raise AssertionError(f"the job ended before {what}\n{self.story()}")
            if asyncio.get_running_loop().time() > deadline:
                raise AssertionError(f"never: {what}\n{self.story()}")
            await asyncio.sleep(0.05)

    async def until_stepping(self, memberships: int, steps: int = 1) -> None:
        """Wait until the processes of the n-th membership have done at least `steps` steps.

        When two are done, all have asked `Snapshots.due` after the first one.
        """

        def stepping() -> bool:
            report = self.backend.report
            if report is None or len(report.memberships) != memberships:
                return False
            newest = report.memberships[-1]
            if newest.first_step is None or newest.last_step is None:
                return False
            return newest.last_step - newest.first_step >= steps - 1

        await self.until(stepping, f"steps in membership {memberships}")

    async def finish(self) -> str:
        """Let the processes end, and return the job's state."""
        self.end.touch()
        status = await asyncio.wait_for(self.task, PATIENCE_SECONDS)
        return status.state

    def output(self) -> str:
        """Return the logs of all workers and of the service."""
        paths = sorted(self.state.logs.glob("*.log"))
        return "\n".join(f"--- {path.name}\n{path.read_text()}" for path in paths)

    def story(self) -> str:
        """Return the course of events, for a failing test."""
        parts = (self.console.getvalue(), str(self.backend.report), self.output()[-10000:])
        return "\n".join(parts)


@contextlib.asynccontextmanager
async def running(
    folder: Path,
    text: str,
    nodes: int = 3,
    script: str = SCRIPT,
    network: NodeNetwork | None = None,
) -> AsyncIterator[Run]:
    """A job that is stopped at the end of the block; nothing of it may be left."""
    (folder / "train.py").write_text(textwrap.dedent(script))
    run = Run(folder, text, nodes, network)
    try:
        yield run
    finally:
        run.backend.stop()
        await asyncio.wait([run.task])
        run.state.unlock()
        left = marked(run.backend.job.metadata.uid)
        assert not left, f"left running: {left}"


def in_background(test: Callable[[Path], Coroutine[None, None, None]]) -> Callable[[Path], None]:
    """Make a test of one that is async."""

    def wrapper(tmp_path: Path) -> None:
        asyncio.run(test(tmp_path))

    wrapper.__name__ = test.__name__
    wrapper.__doc__ = test.__doc__
    return wrapper
