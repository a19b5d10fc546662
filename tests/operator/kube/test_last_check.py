"""A write is refused on an open connection, as long as none of its bytes are sent."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from ddpjob_operator.kube.client import KubeClient
from ddpjob_operator.kube.interface import UnreachableError
from ddpjob_operator.kube.last_check import NotSentError, request_class
from ddpjob_operator.request import Request
from support.http_server import kubeconfig, serving

PODS = "/api/v1/namespaces/default/pods"
LIMIT_SECONDS = 60.0


class Permission:
    """Whether writes are allowed now."""

    def __init__(self) -> None:
        self.given = True

    def __call__(self) -> bool:
        return self.given

    async def withdraw(self, *_: Any) -> None:
        self.given = False


@pytest.mark.usefixtures("nowhere")
def test_a_client_without_permission_reads_and_does_not_write(tmp_path: Path) -> None:
    async def main() -> None:
        permission = Permission()
        async with serving() as server:
            path = kubeconfig(tmp_path / "kubeconfig", server.url)
            kube = await KubeClient.connect(path, may_write=permission)
            try:
                await kube.send(Request("POST", PODS, body={}))
                await permission.withdraw()
                for method in ("POST", "PUT", "PATCH", "DELETE"):
                    with pytest.raises(UnreachableError, match="no longer holds the Lease"):
                        await kube.send(Request(method, PODS, body={}))
                await kube.send(Request("GET", PODS))
            finally:
                await kube.close()
            assert [each.method for each in server.seen] == ["POST", "GET"]

    asyncio.run(main())


@pytest.mark.parametrize("moment", ["on_connection_create_end", "on_request_headers_sent"])
@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_a_permission_that_ends_before_the_bytes_are_sent_counts(moment: str, method: str) -> None:
    async def main() -> None:
        permission, trace = Permission(), aiohttp.TraceConfig()
        getattr(trace, moment).append(permission.withdraw)
        checked = request_class(permission)
        async with (
            serving() as server,
            aiohttp.ClientSession(request_class=checked, trace_configs=[trace]) as session,
            asyncio.timeout(LIMIT_SECONDS),
        ):
            with pytest.raises(NotSentError, match=f"{method} /a was not sent"):
                await session.request(method, f"{server.url}/a", data=b"{}")
            assert server.seen == []

    asyncio.run(main())
