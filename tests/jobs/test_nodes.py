"""Simulated nodes, while several things happen to them at once."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil
import pytest

from ddpjob_agent.forkserver.agents import AgentForkServer
from ddpjob_operator.local.devices.discovery import Devices
from ddpjob_operator.local.devices.pool import DevicePool
from ddpjob_operator.local.simulated.networks import NodeNetwork
from ddpjob_operator.local.simulated.nodes import SimulatedNodes
from ddpjob_operator.local.simulated.pods import SimulatedPod
from ddpjob_operator.local.simulated.processes import marked
from ddpjob_operator.planner.actions import CreateWorker
from ddpjob_operator.planner.observed import Phase
from ddpjob_protocol.environment import ENV_JOB_UID, ENV_WORKER
from support.driving import PATIENCE_SECONDS

UID = uuid.uuid4().hex


def pod(folder: Path, index: int, gpus: int = 0) -> SimulatedPod:
    name = f"probe-worker-{index:03}-1"
    environment = {**os.environ, ENV_JOB_UID: UID, ENV_WORKER: name}
    created = CreateWorker(name, "worker", index, 1)
    log = folder / f"{name}.log"
    return SimulatedPod(created, ["sleep", "600"], environment, folder, log, gpus=gpus)


@pytest.fixture
def on_nodes() -> Callable[[Callable[[SimulatedNodes], Awaitable[None]]], None]:
    def run(body: Callable[[SimulatedNodes], Awaitable[None]]) -> None:
        async def with_nodes() -> None:
            devices = DevicePool(Devices(("0", "1", "2"), "CUDA_VISIBLE_DEVICES"))
            forks = AgentForkServer(os.devnull)
            nodes = SimulatedNodes(0, UID, lambda: None, NodeNetwork(), forks, devices)
            try:
                await body(nodes)
            finally:
                await nodes.stop()

        asyncio.run(with_nodes())
        assert marked(UID) == []

    return run


def test_pods_that_come_while_others_start_each_get_a_node(
    tmp_path: Path, on_nodes: Callable[[Callable[[SimulatedNodes], Awaitable[None]]], None]
) -> None:
    async def body(nodes: SimulatedNodes) -> None:
        for index in range(3):
            nodes.create(pod(tmp_path, index))
        for index in range(3, 6):
            nodes.add()
            nodes.create(pod(tmp_path, index))
            await asyncio.sleep(0)  # the first ones are being started
        for _ in range(3):
            nodes.add()
        assert all(each.phase is Phase.RUNNING for each in nodes.pods.values())
        assert len({each.node for each in nodes.pods.values()}) == 6

    on_nodes(body)


def test_a_node_killed_while_its_pod_starts_leaves_nothing(
    tmp_path: Path, on_nodes: Callable[[Callable[[SimulatedNodes], Awaitable[None]]], None]
) -> None:
    async def body(nodes: SimulatedNodes) -> None:
        nodes.create(pod(tmp_path, 0))
        nodes.add()
        await asyncio.sleep(0)  # so far that its process is being made
        assert nodes.busy() == ["node-0"]
        assert nodes.pods["probe-worker-000-1"].process is None
        nodes.kill("node-0")
        assert nodes.pods == {}

    on_nodes(body)


def test_devices_of_a_lost_pod_are_free_when_its_last_process_has_ended(
    tmp_path: Path, on_nodes: Callable[[Callable[[SimulatedNodes], Awaitable[None]]], None]
) -> None:
    async def body(nodes: SimulatedNodes) -> None:
        lost, new = pod(tmp_path, 0, gpus=2), pod(tmp_path, 1, gpus=2)
        ending = await asyncio.create_subprocess_exec("sleep", "600")
        nodes.create(lost)
        nodes.kill(nodes.add())
        lost.killed.append(psutil.Process(ending.pid))
        nodes.create(new)
        nodes.add()
        await until(lambda: lost.phase is Phase.FAILED)
        few = "too few free GPUs: it needs 2, and 1 of 3 are free"
        assert new.observe().unschedulable == few
        ending.kill()
        await ending.wait()
        await until(lambda: new.phase is Phase.RUNNING)

    on_nodes(body)


async def until(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():  # noqa: ASYNC110 - nothing announces it
            await asyncio.sleep(0.02)
