"""Stock torchrun as a peer.

Three torchrun agents in process groups of their own, one process each, `--nnodes=1:3`; the c10d
store is torch's own TCPStore in a fourth process, so that any node may die
(`is_host=false`). TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, because torch 2.15 never recovers without
it: the survivors' agents wait 60 s for a key that an earlier round left behind, then die.

TUNED has the shortest time-outs that hold: `last_call_timeout=1` is the smallest that torch takes
(whole seconds; 30 by default, paid in full whenever fewer than the maximum come), keep-alives every
second, three may be missed (5 s and three by default). Two (`1x2`) is quicker on paper, but then
healthy idle agents lose their heartbeats, and the next node that joins splits the group in two.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Mapping
from pathlib import Path

import psutil
from benchmarks.processes import Processes
from benchmarks.trials import NODES, PATIENCE_SECONDS, POLL_SECONDS, WORKLOADS, Change, TrialError

from ddpjob_operator.local.simulated.processes import kill_all
from ddpjob_operator.local.simulated.rendezvous_process import free_port, is_free

DEFAULT: Mapping[str, int] = {}
TUNED = {"last_call_timeout": 1, "keep_alive_interval": 1, "keep_alive_max_attempt": 3}


class TorchrunJob:
    """Three torchrun agents and a store."""

    stays = False

    def __init__(self, folder: Path, conf: Mapping[str, int]) -> None:
        self._folder = folder
        self._conf = {"is_host": "false", **conf}
        self._processes = Processes(folder)
        self._port = free_port()
        self._store: asyncio.subprocess.Process | None = None
        self._agents: list[asyncio.subprocess.Process] = []  # of nodes that are up, oldest first
        self._go = folder / "go"

    async def start(self) -> None:
        """Let the agents go when all have imported torch."""
        self._store = await self._processes.start("host_store.py", self._port)
        ready = [await self._start_agent(f"ready-{i}") for i in range(NODES)]
        deadline = time.monotonic() + PATIENCE_SECONDS
        while is_free(self._port) or not all(file.exists() for file in ready):
            if time.monotonic() > deadline:
                raise TrialError("torchrun's agents or their store do not start")
            await asyncio.sleep(POLL_SECONDS)
        self._go.touch()

    async def _start_agent(self, ready: str) -> Path:
        file = self._folder / ready
        agent = await self._processes.start(
            "gated_torchrun.py", file, self._go,
            f"--nnodes=1:{NODES}", "--nproc-per-node=1", "--max-restarts=10",
            "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{self._port}", "--rdzv-id=bench",
            "--rdzv-conf=" + ",".join(f"{key}={value}" for key, value in self._conf.items()),
            "--local-addr=127.0.0.1", WORKLOADS / "step_forever.py", self._folder,
            TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1",
        )  # fmt: skip
        self._agents.append(agent)
        return file

    async def apply(self, change: Change, node: int) -> float:
        """A node is an agent and its worker, which has a session of its own."""
        if change is Change.JOIN:
            at = time.time()
            await self._start_agent("ready-joiner")
            return at
        agent = psutil.Process(self._agents[node].pid)
        workers = agent.children(recursive=True)
        at = time.time()
        match change:
            case Change.KILL:
                kill_all((agent, *workers))
            case Change.FREEZE:
                for process in (agent, *workers):
                    process.send_signal(signal.SIGSTOP)
            case Change.PROCESS:
                kill_all(workers)
            case Change.LEAVE:
                agent.terminate()
        if change in {Change.KILL, Change.LEAVE}:
            del self._agents[node]
        return at

    def bury(self) -> None:
        """No process recovers from a frozen one here."""

    def is_over(self) -> bool:
        """Return whether every agent has given up."""
        return all(agent.returncode is not None for agent in self._agents)

    def service_bytes(self) -> int:
        """Return the resident memory of the process that hosts the store."""
        assert self._store is not None
        return psutil.Process(self._store.pid).memory_info().rss

    def decided(self, after: float) -> None:
        """Return None, because torchrun does not report it."""

    async def stop(self) -> None:
        """Agents, workers, store."""
        await self._processes.stop()
