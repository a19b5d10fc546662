"""Processes of peers: started in sessions of their own, ended with all that they started."""

from __future__ import annotations

import asyncio
import os
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path

from benchmarks.trials import WORKLOADS

from ddpjob_operator.local.simulated.environment import inherited_environment
from ddpjob_operator.local.simulated.processes import sweep
from ddpjob_protocol.environment import ENV_JOB_UID


class Processes:
    """Processes that are found by a mark in their environment, with any parent."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._mark = uuid.uuid4().hex
        self._started: list[asyncio.subprocess.Process] = []

    async def start(
        self, script: str, *arguments: object, **environment: str
    ) -> asyncio.subprocess.Process:
        """Run one of the workloads, in this Python."""
        return await self.run([sys.executable, WORKLOADS / script, *arguments], **environment)

    async def run(
        self, command: Sequence[object], **environment: str
    ) -> asyncio.subprocess.Process:
        """Run any program; its output goes to a log in the folder."""
        with (self._folder / f"process-{len(self._started)}.log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *map(str, command),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                env={**inherited_environment(os.environ), ENV_JOB_UID: self._mark, **environment},
                start_new_session=True,
            )
        self._started.append(process)
        return process

    async def stop(self) -> None:
        """SIGKILL all, with whatever they started."""
        sweep(self._mark)
        for process in self._started:
            await process.wait()
