"""Simulated nodes: pods as process trees, one worker on each node, and ways to break them.

Replaces kubelet and scheduler: places and starts pods, and detects their end. The processes of a
pod are the descendants of its agent and every process with the pod's name in its environment.
May not: decide which pods should exist.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

from ddpjob_agent.forkserver.agents import AgentForkServer, ForkedAgent
from ddpjob_agent.forkserver.channel import AGENT, ForkRequest
from ddpjob_agent.worker.launch import import_environment
from ddpjob_operator.planner.actions import CreateWorker
from ddpjob_operator.planner.observed import Phase, Worker
from ddpjob_protocol.environment import ENV_ADDRESS, ENV_JOB_UID, ENV_WORKER, GRACE_SECONDS
from ddpjob_protocol.exit_codes import Exit

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
            unschedulable=None if self.node else NO_NODE,
            deleting=self.deleting,
            message=self.message,
        )


# Variables of torch and of Open MPI.
RANKS = (("RANK", "LOCAL_RANK"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"))


class NodeNetwork:
    """A network in which all nodes and the service share one loopback address."""

    host = "127.0.0.1"  # address of the service

    def namespace(self, _node: str) -> str:
        """Return the file of a node's network namespace; empty: no separate namespace."""
        return ""

    def environment(self, _node: str) -> Mapping[str, str]:
        """Return the variables with the address of a pod on a node."""
        return {ENV_ADDRESS: self.host}

    def workdir(self, _node: str, given: Path) -> Path:
        """Return the working directory on a node; all nodes share one folder."""
        return given


class SeparateNetworks(NodeNetwork):
    """A network with one address per node, for scripts that distinguish hosts by address."""

    def __init__(self) -> None:
        self._addresses: dict[str, str] = {}

    def environment(self, node: str) -> Mapping[str, str]:
        """Return the variables with the node's own address."""
        new = f"127.0.1.{len(self._addresses) + 1}"
        return {ENV_ADDRESS: self._addresses.setdefault(node, new)}


class SimulatedNodes:
    """The simulated nodes of one job."""

    def __init__(
        self,
        count: int,
        uid: str,
        changed: Callable[[], None],
        network: NodeNetwork,
        forks: AgentForkServer,
    ) -> None:
        self._uid = uid
        self._forks = forks
        self._changed = changed
        self._network = network
        self.grace_seconds = float(GRACE_SECONDS)  # a pod's terminationGracePeriodSeconds
        self.up = [f"node-{i}" for i in range(count)]
        self._made = count
        self.pods: dict[str, SimulatedPod] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    # --- pods -----------------------------------------------------------------------------------

    def create(self, pod: SimulatedPod) -> None:
        """Accept a pod and start it on the next free node; ignore a known name."""
        if pod.name not in self.pods:
            self.pods[pod.name] = pod
            self._schedule()

    def delete(self, name: str) -> None:
        """Stop a pod through its agent, then remove the pod."""
        pod = self.pods.get(name)
        if pod is None or pod.deleting:
            return
        pod.deleting = True
        self._spawn(self._delete(pod))

    async def _delete(self, pod: SimulatedPod) -> None:
        if pod.process is not None and pod.process.returncode is None:
            pod.process.terminate()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(pod.process.wait(), self.grace_seconds)
        kill_all(self._processes_of(pod))
        await self._forget(pod)

    async def _forget(self, pod: SimulatedPod) -> None:
        if self.pods.get(pod.name) is pod:
            del self.pods[pod.name]
        self._schedule()
        self._changed()

    def _schedule(self) -> None:
        busy = {pod.node for pod in self.pods.values() if pod.phase is Phase.RUNNING}
        free = [node for node in self.up if node not in busy]
        waiting = [pod for pod in self.pods.values() if pod.node is None and not pod.deleting]
        for pod, node in zip(waiting, free, strict=False):
            pod.node, pod.phase = node, Phase.RUNNING
            self._spawn(self._run(pod, node))

    async def _run(self, pod: SimulatedPod, node: str) -> None:
        try:
            pod.process = await self._start(pod, node)
        except OSError as error:
            pod.phase, pod.message = Phase.FAILED, f"its agent cannot be started: {error}"
        else:
            if self.pods.get(pod.name) is not pod:  # the node was killed meanwhile
                kill_all(self._processes_of(pod))
            self._changed()
            code = await pod.process.wait()
            kill_all(self._processes_of(pod))
            pod.phase = Phase.SUCCEEDED if code == Exit.OK else Phase.FAILED
            pod.message = "" if code == Exit.OK else f"its agent ended with exit code {code}"
        self._schedule()
        self._changed()

    async def _start(
        self, pod: SimulatedPod, node: str
    ) -> asyncio.subprocess.Process | ForkedAgent:
        """Start the agent of a pod, by a fork of a process with torch if possible."""
        network = self._network.namespace(node)
        workdir = self._network.workdir(node, pod.workdir)
        environment = {**pod.environment, **self._network.environment(node)}
        with pod.log.open("ab") as log:
            if pod.forked is not None:
                request = ForkRequest(AGENT, pod.command, environment, str(workdir), network)
                imports = import_environment(environment, pod.forked.processes)
                del imports[ENV_WORKER]  # the importing process does not belong to this pod
                forked = await self._forks.start(request, log.fileno(), pod.forked.command, imports)
                if forked is not None:
                    return forked
            return await asyncio.create_subprocess_exec(
                *within(network),
                *pod.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=workdir,
                env=environment,
                start_new_session=True,
            )

    # --- breaking things --------------------------------------------------------------------------

    def add(self) -> str:
        """Add a node; return its name."""
        node = f"node-{self._made}"
        self._made += 1
        self.up.append(node)
        self._schedule()
        return node

    def on(self, node: str) -> SimulatedPod | None:
        """Return the running pod of a node."""
        running = (pod for pod in self.pods.values() if pod.phase is Phase.RUNNING)
        return next((pod for pod in running if pod.node == node), None)

    def busy(self) -> list[str]:
        """Return the nodes with a running pod, oldest first."""
        return [node for node in self.up if self.on(node)]

    def kill(self, node: str) -> None:
        """Remove a node and kill its processes at once."""
        self.up.remove(node)
        pod = self.on(node)
        if pod is not None:
            kill_all(self._processes_of(pod))
            del self.pods[pod.name]
        self._changed()

    def drain(self, node: str) -> None:
        """Drain a node: remove the node and delete its pod."""
        self.up.remove(node)
        pod = self.on(node)
        if pod is not None:
            self.delete(pod.name)
        self._changed()

    def signal(self, node: str, number: int) -> None:
        """Send a signal to every process on a node."""
        pod = self.on(node)
        for process in self._processes_of(pod) if pod else []:
            with contextlib.suppress(psutil.NoSuchProcess):  # the process has already ended
                process.send_signal(number)

    def kill_agent(self, node: str) -> None:
        """Send SIGKILL to the agent of a node."""
        pod = self.on(node)
        if pod is not None and pod.process is not None:
            pod.process.kill()

    def kill_process(self, node: str) -> None:
        """Send SIGKILL to the training process with the highest rank on a node."""
        pod = self.on(node)
        trainers = [(r, p) for p in self._processes_of(pod) if (r := rank_of(p)) is not None]
        if trainers:
            max(trainers, key=lambda pair: pair[0])[1].kill()

    # --- the end ----------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Stop every pod with its grace period, then kill all processes of the job."""
        for name in list(self.pods):
            self.delete(name)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self.grace_seconds + 5)
        sweep(self._uid)

    def _processes_of(self, pod: SimulatedPod | None) -> list[psutil.Process]:
        if pod is None:
            return []
        processes = {p.pid: p for p in marked(self._uid) if _environ(p).get(ENV_WORKER) == pod.name}
        if pod.process is not None and pod.process.returncode is None:
            with contextlib.suppress(psutil.NoSuchProcess):
                agent = psutil.Process(pod.process.pid)
                processes |= {p.pid: p for p in (agent, *agent.children(recursive=True))}
        return list(processes.values())

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def within(network: str) -> list[str]:
    """Return the command prefix for a network namespace."""
    return ["nsenter", f"--net={network}"] if network else []


def marked(uid: str) -> list[psutil.Process]:
    """Return the living processes with the job's UID in their environment."""
    return [p for p in psutil.process_iter() if _environ(p).get(ENV_JOB_UID) == uid]


def sweep(uid: str) -> None:
    """Kill the remaining processes of a job."""
    while processes := marked(uid):
        kill_all(processes)


def kill_all(processes: Iterable[psutil.Process]) -> None:
    """Kill processes; a SIGSTOP to all prevents reactions to a process's death."""
    processes = list(processes)
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)


def rank_of(process: psutil.Process) -> int | None:
    """Return the rank of a training process, or None for another process."""
    parent, environment = process.parent(), _environ(process)
    for rank, local_rank in RANKS:
        if rank in environment and local_rank in environment:
            is_child = parent is not None and rank in _environ(parent)
            return None if is_child else int(environment[rank])
    return None


def _environ(process: psutil.Process) -> dict[str, str]:
    try:
        if process.status() == psutil.STATUS_ZOMBIE or process.pid == os.getpid():
            return {}
        return process.environ()
    except (psutil.Error, OSError):
        return {}
