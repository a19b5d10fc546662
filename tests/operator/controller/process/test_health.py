"""Health, readiness and metrics over HTTP."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest
from aiohttp import web

from ddpjob_operator.controller.process.health import health_app, metrics_app, serve
from ddpjob_operator.local.simulated.rendezvous_process import free_port
from ddpjob_protocol.addresses import join_address


def get(app: web.Application, path: str, host: str = "127.0.0.1") -> tuple[int, str, str]:
    """Status, text and content type of what is answered."""

    async def main() -> tuple[int, str, str]:
        runner = await serve(app, port := free_port())
        try:
            url = f"http://{join_address(host, port)}{path}"
            async with aiohttp.ClientSession() as session, session.get(url) as answer:
                return answer.status, await answer.text(), answer.headers["Content-Type"]
        finally:
            await runner.cleanup()

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("path", "problems", "obstacles", "status", "text"),
    [
        ("/healthz", [], [], 200, "ok\n"),
        ("/healthz", [], ["not listed yet"], 200, "ok\n"),
        ("/healthz", ["frozen", "deaf"], [], 500, "frozen\ndeaf\n"),
        ("/readyz", [], [], 200, "ok\n"),
        ("/readyz", [], ["not listed yet"], 503, "not listed yet\n"),
    ],
    ids=["healthy", "healthy, not ready", "unhealthy", "ready", "not ready"],
)
def test_health_is_told_in_status_and_words(
    path: str, problems: list[str], obstacles: list[str], status: int, text: str
) -> None:
    app = health_app(lambda: problems, lambda: obstacles)
    assert get(app, path)[:2] == (status, text)


def test_metrics_are_told_as_prometheus_reads_them() -> None:
    status, text, kind = get(metrics_app(lambda: b"apples_total 3.0\n"), "/metrics")
    assert (status, text) == (200, "apples_total 3.0\n")
    assert kind.startswith("text/plain; version=")


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_the_kubelet_calls_over_ipv4_or_ipv6(host: str) -> None:
    assert get(health_app(list, list), "/healthz", host)[0] == 200


def test_nothing_else_is_there() -> None:
    assert get(health_app(list, list), "/metrics")[0] == 404


def test_a_port_that_is_taken_is_an_error() -> None:
    async def main() -> None:
        runner = await serve(health_app(list, list), port := free_port())
        try:
            with pytest.raises(OSError, match="Address already in use"):
                await serve(health_app(list, list), port)
        finally:
            await runner.cleanup()

    asyncio.run(main())
