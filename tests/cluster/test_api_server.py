"""What tests/operator says of an API server and of the reflector, said of a real one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from cluster.control_plane import ControlPlane
from ddpjob_operator.kube.client import KubeClient
from ddpjob_operator.kube.interface import ApiServer
from support.any_api_server.answers import *  # noqa: F403
from support.any_api_server.reflector import *  # noqa: F403
from support.objects import Api


@pytest.fixture
def api(apiserver: ControlPlane) -> Api:
    """Runs the body of a test with the real API server."""

    def run(body: Callable[[ApiServer], Awaitable[None]]) -> None:
        async def main() -> None:
            kube = await KubeClient.connect(str(apiserver.kubeconfig))
            try:
                await body(kube)
            finally:
                await kube.close()

        asyncio.run(main())

    return run
