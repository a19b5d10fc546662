"""Simulated nodes: pods as process trees, one worker on each node, and ways to break them.

Replaces kubelet and scheduler: places and starts pods, and detects their end.
May not: decide which pods should exist.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Coroutine

import psutil

from ddpjob_agent.forkserver.agents import AgentForkServer, ForkedAgent
from ddpjob_agent.forkserver.channel import AGENT, ForkRequest
from ddpjob_agent.worker.launch import import_environment
from ddpjob_operator.local.devices.pool import DevicePool
from ddpjob_operator.local.simulated.networks import NodeNetwork, within
from ddpjob_operator.local.simulated.pods import NO_NODE, SimulatedPod
from ddpjob_operator.local.simulated.processes import (
    explain_lasting,
    kill_all,
    pod_processes,
    rank_of,
    send_signal,
    sweep,
    wait_until_ended,
)
from ddpjob_operator.planner.observed import Phase
from ddpjob_protocol.environment import ENV_WORKER, GRACE_SECONDS
from ddpjob_protocol.exit_codes import Exit


class SimulatedNodes:
    """The simulated nodes of one job."""

    def __init__(
        self,
        count: int,
        uid: str,
        changed: Callable[[], None],
        network: NodeNetwork,
        forks: AgentForkServer,
        devices: DevicePool,
    ) -> None:
        self._uid = uid
        self._forks = forks
        self._devices = devices
        self._changed = changed
        self._network = network
        self.grace_seconds = float(GRACE_SECONDS)  # a pod's terminationGracePeriodSeconds
        self.up = [f"node-{i}" for i in range(count)]
        self._made = count
        self.pods: dict[str, SimulatedPod] = {}
        self.problem = ""  # the reason why no agent can be started here
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
            send_signal(pod.process, signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(pod.process.wait(), self.grace_seconds)
        self._kill(pod)
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
        for pod in waiting:
            pod.obstacle = self._devices.take(pod.name, pod.gpus) if free else NO_NODE
            if not pod.obstacle:
                pod.node, pod.phase = free.pop(0), Phase.RUNNING
                self._spawn(self._run(pod, pod.node))

    async def _run(self, pod: SimulatedPod, node: str) -> None:
        try:
            pod.process = await self._start(pod, node)
        except OSError as error:
            pod.phase, pod.message = Phase.FAILED, f"its agent cannot be started: {error}"
            self.problem = explain_lasting(error, pod.command[0])
        else:
            if self.pods.get(pod.name) is not pod:  # the node was killed meanwhile
                self._kill(pod)
            self._changed()
            code = await pod.process.wait()
            self._kill(pod)
            pod.phase = Phase.SUCCEEDED if code == Exit.OK else Phase.FAILED
            pod.message = "" if code == Exit.OK else f"its agent ended with exit code {code}"
        self._schedule()
        self._changed()
        if pod.gpus:
            await wait_until_ended(pod.killed)
        self._devices.release(pod.name)
        self._schedule()
        self._changed()

    async def _start(
        self, pod: SimulatedPod, node: str
    ) -> asyncio.subprocess.Process | ForkedAgent:
        """Start the agent of a pod, by a fork of a process with torch if possible."""
        network = self._network.namespace(node)
        workdir = self._network.workdir(node, pod.workdir)
        environment = {
            **self._devices.environment(pod.name),
            **pod.environment,
            **self._network.environment(node),
        }
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
            self._kill(pod)
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
            send_signal(pod.process, signal.SIGKILL)

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
        agent = pod.process if pod.process and pod.process.returncode is None else None
        return pod_processes(self._uid, pod.name, agent.pid if agent else None)

    def _kill(self, pod: SimulatedPod) -> None:
        processes = self._processes_of(pod)
        kill_all(processes)
        pod.killed += processes

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
