"""Scenes that happen to one job, one after the other: each says what it leads to.

Starting a job costs more than most of what can happen to it. A scene begins and ends with a job
in which all workers train, so that any can follow any other one.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import pytest

from driving import Run


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
        """Wait until so many memberships more have been, and the last one steps; check them."""
        await self.run.until_stepping(len(self.seen) + len(history), steps)
        assert self.run.history() == [*self.seen, *history]

    async def steps(self) -> None:
        """Wait for steps of the newest membership."""
        await self.run.until(lambda: bool(self.run.report.rounds[-1].last_step), "steps")

    async def fills_up(self, nodes: int, world_size: int) -> None:
        """Add nodes until there are so many, and all of them train."""
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


def stories(*told: Sequence[Scene[AnyJob]]) -> pytest.MarkDecorator:
    """Make a test of each story, a sequence of scenes that happen to one job.

    `-k SCENE` chooses its story; with DDPJOB_SCENES=alone each scene has a job of its own.
    """
    alone = os.environ.get("DDPJOB_SCENES") == "alone"
    chosen = [(scene,) for story in told for scene in story] if alone else told
    names = ["-".join(scene.__name__ for scene in story) for story in chosen]
    return pytest.mark.parametrize("story", chosen, ids=names)


async def play(subtests: pytest.Subtests, scene: Scene[AnyJob], job: AnyJob) -> None:
    """Let a scene happen as a subtest; if it fails, the job is in no state for the next one."""
    done = False
    with subtests.test(scene.__name__):
        job.begin()
        await scene(job)
        done = True
    assert done, f"{scene.__name__} failed, the story ends"
