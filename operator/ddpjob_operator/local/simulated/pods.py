"""A simulated pod: what its agent runs, and its state as the operator observes it.

May not: start or end processes.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

from ddpjob_agent.forkserver.agents import ForkedAgent
from ddpjob_operator.planner.actions import CreateWorker
from ddpjob_operator.planner.observed import Phase, Worker

NO_NODE = "no free node: every running node already has a worker"


class TrainingProcess(NamedTuple):
    """The command and number of a pod's training processes."""

    command: Sequence[str]
    processes: int


@dataclasses.dataclass(eq=False)
class SimulatedPod:
    """A worker pod; `process` is its agent."""

    created: CreateWorker
    command: list[str]  # starts the agent
    environment: Mapping[str, str]
    workdir: Path
    log: Path
    forked: TrainingProcess | None = None  # for a warm start: the agent's training processes
    gpus: int = 0
    obstacle: str = NO_NODE  # while it has no node
    killed: list[psutil.Process] = dataclasses.field(default_factory=list)
    node: str | None = None
    process: asyncio.subprocess.Process | ForkedAgent | None = None
    phase: Phase = Phase.PENDING
    message: str = ""
    deleting: bool = False

    @property
    def name(self) -> str:
        """Name of the worker."""
        return self.created.name

    def observe(self) -> Worker:
        """Return the worker as the operator observes it."""
        return Worker(
            name=self.name,
            group=self.created.group,
            index=self.created.index,
            incarnation=self.created.incarnation,
            phase=self.phase,
            node=self.node,
            unschedulable=None if self.node else self.obstacle,
            deleting=self.deleting,
            message=self.message,
            # The simulated nodes are one machine, so a move to another one repairs nothing.
            kept_off=(self.node,) if self.node else (),
        )
