"""The operator's process: its parts from the start to the end.

The end is in order: no new pass, the passes in progress, the Lease, and then everything else. So
the next leader begins while nothing of this one is under way.
May not: plan.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import socket
from collections.abc import AsyncIterator, Sequence
from typing import Any

from ddpjob_operator.controller.controller import Controller
from ddpjob_operator.controller.keys.job_keys import JobKeys
from ddpjob_operator.controller.keys.operator_key import read_operator_key
from ddpjob_operator.controller.leases.leadership import Leadership, LeaseName
from ddpjob_operator.controller.process.handlers import stop_at_signals, watch_jobs
from ddpjob_operator.controller.process.health import health_app, metrics_app, serve
from ddpjob_operator.controller.process.served import ServedJobs
from ddpjob_operator.controller.reconciler import utc_now
from ddpjob_operator.controller.settings import Settings
from ddpjob_operator.controller.web.copies import JobCopies
from ddpjob_operator.controller.web.pages import web_app
from ddpjob_operator.kube.client import KubeClient

PASSES_SECONDS = 10.0  # for the passes in progress at a stop

log = logging.getLogger("ddpjob.process")


async def run_operator(settings: Settings) -> None:
    """Run until SIGTERM or SIGINT; raise the error of a failed part, such as a lost Lease."""
    key = read_operator_key(settings.key_file)
    keys = JobKeys(key, [read_operator_key(each) for each in settings.previous_key_files])
    async with _leadership(settings) as leadership:
        may_write = leadership.is_sure if leadership else None
        kube = await KubeClient.connect(settings.kubeconfig, settings.context, may_write)
        try:
            controller = Controller(kube, settings, keys, leads=leadership is None)
            served = ServedJobs(kube, controller.cluster.jobs.scopes)
            async with _pages(settings, kube, controller, served, leadership):
                await _run(settings, kube, controller, served, leadership)
        finally:
            await kube.close()


async def _run(
    settings: Settings,
    kube: KubeClient,
    controller: Controller,
    served: ServedJobs,
    leadership: Leadership | None,
) -> None:
    stop = asyncio.Event()
    stop_at_signals(stop)
    leading = asyncio.ensure_future(_lead(controller, leadership))
    tasks = [
        leading,
        asyncio.ensure_future(controller.run()),
        asyncio.ensure_future(_watch(controller, kube, served, settings.namespaces, stop)),
    ]
    try:
        await _until(stop, tasks)
        log.info("stops: no new pass begins")
        ended = await controller.stop_planning(PASSES_SECONDS)
        leading.cancel()
        await asyncio.wait([leading])
        if leadership is not None and leadership.is_sure():
            if ended:
                await leadership.release()
            else:
                log.warning("a pass is cut off; the Lease runs out by itself")
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _watch(
    controller: Controller,
    kube: KubeClient,
    served: ServedJobs,
    namespaces: tuple[str, ...],
    stop: asyncio.Event,
) -> None:
    await served.wait()
    await watch_jobs(controller, kube, namespaces, stop)


async def _lead(controller: Controller, leadership: Leadership | None) -> None:
    if leadership is None:
        await asyncio.get_running_loop().create_future()
        return
    await leadership.acquire()
    controller.lead()
    await leadership.keep()


async def _until(stop: asyncio.Event, tasks: Sequence[asyncio.Future[None]]) -> None:
    """Wait until `stop` is set; raise if a task ends before."""
    waiting = asyncio.ensure_future(stop.wait())
    watched: list[asyncio.Future[Any]] = [*tasks, waiting]
    try:
        await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
        if stop.is_set():
            return
        for task in tasks:
            if task.done():
                await task
        raise RuntimeError("the operator ended without a stop signal")
    finally:
        waiting.cancel()


@contextlib.asynccontextmanager
async def _leadership(settings: Settings) -> AsyncIterator[Leadership | None]:
    """Yield this operator's part in the election, with connections of its own; or None."""
    if not settings.lease:
        yield None
        return
    namespace, _, name = settings.lease.partition("/")
    kube = await KubeClient.connect(settings.kubeconfig, settings.context)
    identity = f"{socket.gethostname()}-{secrets.token_hex(4)}"
    try:
        yield Leadership(kube, LeaseName(namespace, name), identity)
    finally:
        await kube.close()


@contextlib.asynccontextmanager
async def _pages(
    settings: Settings,
    kube: KubeClient,
    controller: Controller,
    served: ServedJobs,
    leadership: Leadership | None,
) -> AsyncIterator[None]:
    """Serve health and metrics, and the page about all jobs."""

    def problems() -> list[str]:
        lost = leadership is not None and leadership.is_lost()
        return [*(["the Lease is lost"] if lost else ()), *controller.problems()]

    def obstacles() -> list[str]:
        return [*([served.obstacle] if served.obstacle else ()), *controller.not_ready_reasons()]

    role = leadership.role if leadership else str
    servers = []
    try:
        if settings.health_port is not None:
            app = health_app(problems, obstacles, role)
            servers.append(await serve(app, settings.health_port))
        if settings.metrics_port is not None:
            app = metrics_app(controller.metrics.page)
            servers.append(await serve(app, settings.metrics_port))
        if settings.web_port is not None:
            copies = JobCopies(kube, controller.cluster.jobs.scopes)
            app = web_app(copies, settings.web_hosts, utc_now)
            servers.append(await serve(app, settings.web_port))
        yield
    finally:
        for server in servers:
            await server.cleanup()
