"""ddpjob as a peer: what `ddpjob run --local` does, in this process, all settings at default."""

from __future__ import annotations

import asyncio
import io
import json
import time
from pathlib import Path

from benchmarks.trials import NODES, WORKLOADS
from rich.console import Console

from ddpjob_operator import jobfile
from ddpjob_operator.local.backend import LocalBackend
from ddpjob_operator.local.nodes import marked
from ddpjob_operator.local.state import StateFolder
from ddpjob_operator.local.timeline import Timeline
from ddpjob_operator.status import DDPJobStatus


class LocalJob:
    """Level L0 with a cold start: the script knows nothing of ddpjob, nothing is imported early."""

    def __init__(self, folder: Path) -> None:
        spec = {
            "replicas": NODES,
            "command": ["torchrun", str(WORKLOADS / "step_forever.py"), str(folder)],
        }
        head = {"apiVersion": "ddpjob.io/v1alpha1", "kind": "DDPJob", "metadata": {"name": "bench"}}
        job = jobfile.parse(json.dumps({**head, "spec": spec}))
        self._state = StateFolder(folder / "state", "default", "bench")
        self._state.lock()
        self._state.begin(fresh=True)
        timeline = Timeline(Console(file=io.StringIO()), self._state.path / "timeline.jsonl")
        self._backend = LocalBackend(job, self._state, timeline, workdir=folder, nodes=NODES)
        self._run: asyncio.Future[DDPJobStatus] | None = None

    async def start(self) -> None:
        """Let the back end run beside the measurement."""
        self._run = asyncio.ensure_future(self._backend.run())

    def kill(self, node: int) -> float:
        """As `--chaos kill` does it; the time it takes to find the processes counts."""
        killed = time.time()
        self._backend.nodes.kill(f"node-{node}")
        return killed

    def is_over(self) -> bool:
        """Whether the back end has ended."""
        return self._run is not None and self._run.done()

    def service_bytes(self) -> int:
        """Of the rendezvous service."""
        processes = marked(self._backend.job.metadata.uid)
        (service,) = (p for p in processes if "rendezvous" in p.cmdline())
        return service.memory_info().rss

    def decided(self) -> float | None:
        """By the rendezvous service's own record."""
        rounds = self._backend.report.rounds if self._backend.report else ()
        return next((r.since for r in reversed(rounds) if r.world_size == NODES - 1), None)

    async def stop(self) -> None:
        """Back end, service, agents and processes."""
        self._backend.stop()
        if self._run is not None:
            await self._run
        self._state.unlock()
