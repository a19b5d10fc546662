"""The stories of tests/operator/controller/test_reconciler.py on a real API server.

The quota is a real one, too: its admission is in the API server. Only the controller that counts
what is used already is missing here, and therefore played.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from cluster.control_plane import ControlPlane
from ddpjob_operator.kube.client import KubeClient
from ddpjob_operator.kube.interface import ApiError, ApiServer
from ddpjob_operator.request import Request
from support.reconciling.ends import *  # noqa: F403
from support.reconciling.life import *  # noqa: F403
from support.reconciling.measured import *  # noqa: F403
from support.reconciling.policies import *  # noqa: F403
from support.reconciling.remembered import *  # noqa: F403
from support.reconciling.stage import Play, Stage, staged
from support.reconciling.trouble import *  # noqa: F403

PATIENCE_SECONDS = 60.0


class Quota:
    """A ResourceQuota of a namespace, in force when it was set."""

    def __init__(self, kube: ApiServer, namespace: str) -> None:
        self._kube = kube
        self._base = f"/api/v1/namespaces/{namespace}"

    async def allow_pods(self, count: int | None) -> None:
        path = f"{self._base}/resourcequotas"
        if count is None:
            await self._kube.send(Request("DELETE", f"{path}/few"))
            return
        pods = await self._kube.send(Request("GET", f"{self._base}/pods"))
        hard = {"pods": str(count)}
        body = {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "few"},
            "spec": {"hard": hard},
        }
        await self._kube.send(Request("POST", path, body=body))
        # It counts as used up until that is noticed: only a refusal shows that it is in force.
        await self._count(hard, count)
        await self._until(refused=True)
        used = len(pods["items"])
        await self._count(hard, used)
        await self._until(refused=used >= count)

    async def _count(self, hard: dict[str, str], used: int) -> None:
        path = f"{self._base}/resourcequotas/few"
        quota = await self._kube.send(Request("GET", path))
        quota["status"] = {"hard": hard, "used": {"pods": str(used)}}
        await self._kube.send(Request("PUT", f"{path}/status", body=quota))

    async def _until(self, *, refused: bool) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while await self._refuses() != refused:
            assert time.monotonic() < deadline, "the quota has no effect"
            await asyncio.sleep(0.1)

    async def _refuses(self) -> bool:
        pod: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "probe"},
            "spec": {"containers": [{"name": "probe", "image": "probe"}]},
        }
        try:
            await self._kube.send(
                Request("POST", f"{self._base}/pods", query={"dryRun": "All"}, body=pod)
            )
        except ApiError:
            return True
        return False


@pytest.fixture
def play(apiserver: ControlPlane, namespace: str) -> Play:
    """Lets a story happen, in two namespaces of its own."""
    other = f"{namespace}-other"
    apiserver.create_namespace(other)

    def run(story: Callable[[Stage], Awaitable[None]]) -> None:
        async def main() -> None:
            kube = await KubeClient.connect(str(apiserver.kubeconfig))
            try:
                stage = Stage(kube, (namespace, other), Quota(kube, namespace))
                async with staged(stage):
                    await story(stage)
            finally:
                await kube.close()

        asyncio.run(main())

    return run
