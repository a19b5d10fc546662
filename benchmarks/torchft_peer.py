"""torchft as a peer: three replica groups of one process, and its lighthouse in a fourth.

SETTINGS are the shortest that hold: a replica that is silent for a second, ten heartbeats, is out
(five seconds by default), and the lighthouse looks every 10 ms (100). How long it waits for one
that beats and does not come stays at its default of a minute: shorter, and a replica that is late
once, as after writing a file, loses its place. A collective may take as long as a process may be
silent at ddpjob's L2 (TIMEOUT_SECONDS; a minute by default).
"""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path

import psutil
from benchmarks.processes import Processes
from benchmarks.trials import NODES, PATIENCE_SECONDS, POLL_SECONDS, WORKLOADS, Change, TrialError

from ddpjob_operator.local.simulated.networks import NodeNetwork, within
from ddpjob_operator.local.simulated.rendezvous_process import free_port, is_free
from ddpjob_protocol.environment import ENV_ADDRESS
from support.networks import Networks

SETTINGS = {"min_replicas": 1, "heartbeat_timeout_ms": 1000, "quorum_tick_ms": 10}
TIMEOUT_SECONDS = 3


class TorchftJob:
    """A node is one process: that dies, or the node dies, is the same."""

    stays = True

    def __init__(self, folder: Path, programs: Path, networks: Networks | None = None) -> None:
        self._folder = folder
        self._programs = programs
        self._networks = networks
        self._network: NodeNetwork = networks or NodeNetwork()
        self._processes = Processes(folder)
        self._port = free_port()
        self._lighthouse: asyncio.subprocess.Process | None = None
        self._nodes: dict[str, asyncio.subprocess.Process] = {}  # that are up, oldest first
        self._made = 0
        self._silent: str | None = None

    async def start(self) -> None:
        """The lighthouse first; the replicas form a quorum as they come."""
        settings = [f"--{name}={value}" for name, value in SETTINGS.items()]
        lighthouse = self._programs / "torchft_lighthouse"
        self._lighthouse = await self._processes.run(
            [lighthouse, f"--bind=[::]:{self._port}", *settings]
        )
        deadline = time.monotonic() + PATIENCE_SECONDS
        while is_free(self._port):
            if self._lighthouse.returncode is not None or time.monotonic() > deadline:
                raise TrialError("torchft's lighthouse does not start")
            await asyncio.sleep(POLL_SECONDS)
        for _ in range(NODES):
            await self._start_node()

    async def _start_node(self) -> None:
        node = f"node-{self._made}"
        self._made += 1
        command = within(self._network.namespace(node))
        environment = self._network.environment(node)
        self._nodes[node] = await self._processes.run(
            [
                *command, self._programs / "python", WORKLOADS / "torchft_forever.py",
                self._folder, environment[ENV_ADDRESS],
                f"http://{self._network.host}:{self._port}", TIMEOUT_SECONDS,
            ],
            **environment,
        )  # fmt: skip

    async def apply(self, change: Change, node: int) -> float:
        """To its process; the network for a cut."""
        if change is Change.JOIN:
            at = time.time()
            await self._start_node()
            return at
        name = list(self._nodes)[node]
        process = self._nodes[name]
        at = time.time()
        match change:
            case Change.KILL:
                process.kill()
            case Change.FREEZE:
                process.send_signal(signal.SIGSTOP)
            case Change.CUT:
                assert self._networks is not None
                self._networks.cut(name)
            case Change.LEAVE:
                process.terminate()
            case _:
                raise AssertionError(change)
        if change in {Change.FREEZE, Change.CUT}:
            self._silent = name
        else:
            del self._nodes[name]
        return at

    def bury(self) -> None:
        """The silent node is gone."""
        if self._silent is not None:
            self._nodes.pop(self._silent).kill()
            self._silent = None

    def is_over(self) -> bool:
        """Return whether every process has ended."""
        return all(process.returncode is not None for process in self._nodes.values())

    def service_bytes(self) -> int:
        """Return the resident memory of the lighthouse."""
        assert self._lighthouse is not None
        return psutil.Process(self._lighthouse.pid).memory_info().rss

    def decided(self, after: float) -> None:
        """Return None, because torchft does not report it."""

    async def stop(self) -> None:
        """Processes and lighthouse."""
        await self._processes.stop()
