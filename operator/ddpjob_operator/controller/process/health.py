"""Serves the operator's health, readiness and metrics over HTTP.

May not: decide whether an operator is healthy; the caller supplies the problems.
"""

from __future__ import annotations

import socket
from collections.abc import Callable

from aiohttp import web
from prometheus_client.exposition import CONTENT_TYPE_LATEST

Problems = Callable[[], list[str]]


def health_app(
    problems: Problems, obstacles: Problems, role: Callable[[], str] = str
) -> web.Application:
    """Return an app with `/healthz` (500: restart needed) and `/readyz` (503: not ready).

    A ready operator reports its role there, leader or standby.
    """

    async def healthz(_: web.Request) -> web.Response:
        return _answer(problems(), 500)

    async def readyz(_: web.Request) -> web.Response:
        return _answer(obstacles(), 503, role())

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz)])
    return app


def metrics_app(page: Callable[[], bytes]) -> web.Application:
    """Return an app with `/metrics` for Prometheus, which answers with this page."""

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=page(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.add_routes([web.get("/metrics", metrics)])
    return app


async def serve(app: web.Application, port: int) -> web.AppRunner:
    """Listen on this port of all addresses until `cleanup()` of the returned runner."""
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.SockSite(runner, _bind(port)).start()
    return runner


def _bind(port: int) -> socket.socket:
    """Return a socket for the kubelet and Prometheus, which call over IPv6 or IPv4."""
    six = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if six else socket.AF_INET
    return socket.create_server(("", port), family=family, dualstack_ipv6=six)


def _answer(problems: list[str], status: int, role: str = "") -> web.Response:
    if problems:
        return web.Response(text="\n".join(problems) + "\n", status=status)
    return web.Response(text=f"ok: {role}\n" if role else "ok\n")
