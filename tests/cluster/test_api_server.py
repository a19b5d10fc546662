"""What tests/operator says of an API server and of the reflector, said of a real one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

pytest.register_assert_rewrite("support.any_api_server.answers", "support.any_api_server.reflector")

from cluster.control_plane import ControlPlane  # noqa: E402
from ddpjob_operator.kube.client import KubeClient  # noqa: E402
from ddpjob_operator.kube.interface import ApiServer  # noqa: E402
from support.any_api_server.answers import *  # noqa: E402, F403
from support.any_api_server.reflector import *  # noqa: E402, F403
from support.objects import Api  # noqa: E402


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
