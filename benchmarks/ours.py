"""ddpjob as a peer: what `ddpjob run --local` does, in this process, settings at their defaults."""

from __future__ import annotations

import asyncio
import io
import json
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.trials import NODES, WORKLOADS, Change
from benchmarks.workloads.common import TINY
from rich.console import Console

from ddpjob_operator.api import jobfile
from ddpjob_operator.api.status import DDPJobStatus
from ddpjob_operator.local.backend import LocalBackend
from ddpjob_operator.local.record.timeline import Timeline
from ddpjob_operator.local.simulated.processes import marked
from ddpjob_operator.local.state_dir import JobStateDir
from ddpjob_protocol.messages.control import MembershipRecord
from support.networks import Networks


class LocalJob:
    """Level L2 if `stays`; else L0: the script knows nothing of ddpjob. `networks`: to be cut off."""

    def __init__(
        self,
        folder: Path,
        *,
        stays: bool,
        warm: bool = True,
        size: str = TINY,
        networks: Networks | None = None,
        script: Sequence[str] = (),
    ) -> None:
        self.stays = stays
        script = script or (
            ["live_forever.py", str(folder), size] if stays else ["step_forever.py", str(folder)]
        )
        spec = {
            "replicas": NODES,
            "command": ["torchrun", str(WORKLOADS / script[0]), *script[1:]],
            # In restart mode a join restarts all workers, so it is delayed by default.
            "elastic": {"warmStart": warm, **({} if stays else {"joinPolicy": "Immediate"})},
        }
        head = {"apiVersion": "ddpjob.io/v1alpha1", "kind": "DDPJob", "metadata": {"name": "bench"}}
        job = jobfile.parse(json.dumps({**head, "spec": spec}))
        self._state = JobStateDir(folder / "state", "default", "bench")
        self._state.lock()
        self._state.begin(fresh=True)
        timeline = Timeline(Console(file=io.StringIO()), self._state.path / "timeline.jsonl")
        self._backend = LocalBackend(
            job, self._state, timeline, workdir=folder, nodes=NODES, network=networks
        )
        self._networks = networks
        self._run: asyncio.Future[DDPJobStatus] | None = None
        self._silent: str | None = None

    async def start(self) -> None:
        """Let the back end run beside the measurement."""
        self._run = asyncio.ensure_future(self._backend.run())

    async def apply(self, change: Change, node: int) -> float:
        """Kill the node as `--chaos` does; the time to find the processes counts."""
        nodes = self._backend.nodes
        busy = nodes.busy()
        at = time.time()
        match change:
            case Change.KILL:
                nodes.kill(busy[node])
            case Change.FREEZE:
                nodes.signal(busy[node], signal.SIGSTOP)
                self._silent = busy[node]
            case Change.CUT:
                assert self._networks is not None
                self._networks.cut(busy[node])
                self._silent = busy[node]
            case Change.PROCESS:
                nodes.kill_process(busy[node])
            case Change.JOIN:
                nodes.add()
            case Change.LEAVE:
                nodes.drain(busy[node])
        return at

    def causes(self) -> list[str]:
        """Return the causes of all memberships so far."""
        return [each.cause for each in self._memberships()]

    def bury(self) -> None:
        """The silent node is gone."""
        if self._silent is not None:
            self._backend.nodes.kill(self._silent)
            self._silent = None

    def is_over(self) -> bool:
        """Return whether the back end has ended."""
        return self._run is not None and self._run.done()

    def service_bytes(self) -> int:
        """Return the resident memory of the rendezvous service."""
        processes = marked(self._backend.job.metadata.uid)
        (service,) = (p for p in processes if "rendezvous" in p.cmdline())
        return service.memory_info().rss

    def decided(self, after: float) -> float | None:
        """By the rendezvous service's own record."""
        return next((each.since for each in self._memberships() if each.since > after), None)

    def _memberships(self) -> tuple[MembershipRecord, ...]:
        return self._backend.report.memberships if self._backend.report else ()

    async def stop(self) -> None:
        """Back end, service, agents and processes."""
        self.bury()
        self._backend.stop()
        if self._run is not None:
            await self._run
        self._state.unlock()
