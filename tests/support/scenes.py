"""Scenes of local jobs. Each begins and ends with a job in which all workers train."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from support.driving import Run
from support.stories import Subtests, happening


class Job:
    """A job, and what has happened to it before the scene."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.nodes = run.backend.nodes
        self.begin()

    def begin(self) -> None:
        """Begin a scene."""
        self.seen = self.run.history()
        self._counts = (self.run.report.failures, self.run.report.losses)

    async def has(self, *history: tuple[str, int], steps: int = 1) -> None:
        """Wait until these memberships have followed, and the last one steps; check them."""
        await self.run.until_stepping(len(self.seen) + len(history), steps)
        assert self.run.history() == [*self.seen, *history]

    async def steps(self) -> None:
        """Wait for steps of the newest membership."""
        await self.run.until(lambda: bool(self.run.report.memberships[-1].last_step), "steps")

    async def fills_up(self, nodes: int, world_size: int) -> None:
        """Add nodes until there are `nodes` of them, and all train."""
        for _ in range(nodes - len(self.nodes.up)):
            self.nodes.add()
        await self.run.until(lambda: self.run.history()[-1][1] == world_size, "all are back")
        await self.steps()

    def counted(self) -> tuple[int, int]:
        """Failures and losses since the scene began."""
        failures, losses = self._counts
        return self.run.report.failures - failures, self.run.report.losses - losses


AnyJob = TypeVar("AnyJob", bound=Job)
Scene = Callable[[AnyJob], Awaitable[None]]


async def play(subtests: Subtests, scene: Scene[AnyJob], job: AnyJob) -> None:
    """Let a scene happen to a job."""
    with happening(subtests, scene):
        job.begin()
        await scene(job)
