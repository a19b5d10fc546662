"""What tests/shell says of an API server and of the reflector, said of a real one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

pytest.register_assert_rewrite("shell.test_api_server", "shell.test_reflector")

from cluster.control_plane import ApiServer  # noqa: E402
from ddpjob_operator.kube.client import KubeClient  # noqa: E402
from ddpjob_operator.kube.interface import Kube  # noqa: E402
from shell.conftest import Api  # noqa: E402
from shell.test_api_server import *  # noqa: E402, F403
from shell.test_reflector import *  # noqa: E402, F403


@pytest.fixture
def api(apiserver: ApiServer) -> Api:
    """Runs the body of a test with the real API server."""

    def run(body: Callable[[Kube], Awaitable[None]]) -> None:
        async def main() -> None:
            kube = await KubeClient.connect(str(apiserver.kubeconfig))
            try:
                await body(kube)
            finally:
                await kube.close()

        asyncio.run(main())

    return run
