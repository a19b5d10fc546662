"""The only user of kopf, which signs in, watches DDPJobs and names the changed ones.

A handler only names a job. No handler makes kopf write a finalizer or an annotation to an object.
May not: read a job, or keep any of its content.
"""

from __future__ import annotations

import asyncio
from typing import Any

import kopf

from ddpjob_operator.api import constants
from ddpjob_operator.controller.controller import Controller
from ddpjob_operator.controller.health import health_app, metrics_app, serve
from ddpjob_operator.controller.settings import Settings
from ddpjob_operator.kube.client import KubeClient

REQUEST_SECONDS = 50
SERVER_SECONDS = 300  # the API server ends a watch then; the client ends it soon after
RECONNECT_SECONDS = (1, 2, 3, 5, 8, 13, 21, *[30] * 20)  # about ten minutes before kopf gives up


def registry_for(controller: Controller, kube: KubeClient) -> kopf.OperatorRegistry:
    """Return a registry with all handlers."""
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    async def login(**_: Any) -> kopf.ConnectionInfo:
        return kopf.ConnectionInfo(**await kube.credentials())

    @kopf.on.event(constants.GROUP, constants.VERSION, constants.PLURAL, registry=registry)
    async def job_changed(namespace: str | None, name: str | None, **_: Any) -> None:
        controller.changed(namespace or "", name or "")

    return registry


def kopf_settings() -> kopf.OperatorSettings:
    """Return the settings of kopf."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False  # the operator posts its own events, each once
    settings.scanning.disabled = True  # needs rights on the whole cluster
    settings.peering.standalone = True  # peering pauses kopf's watches, but not our tasks
    settings.watching.server_timeout = SERVER_SECONDS
    settings.watching.client_timeout = SERVER_SECONDS + 10
    settings.watching.connect_timeout = 30
    settings.watching.chunk_size = 500  # without it a large list is held in memory at once
    settings.queueing.idle_timeout = 0.5  # seconds; a job's task ends soon after its last event
    settings.networking.request_timeout = REQUEST_SECONDS
    settings.networking.error_backoffs = RECONNECT_SECONDS
    settings.persistence.finalizer = (
        f"{constants.GROUP}/unused"  # kopf's default is shared by all operators
    )
    return settings


async def run_operator(settings: Settings) -> None:
    """Run until SIGTERM or SIGINT, which kopf handles; raise the error of a failed task."""
    kube = await KubeClient.connect(settings.kubeconfig, settings.context)
    controller = Controller(kube, settings)
    servers = []
    stop = asyncio.Event()
    try:
        if settings.health_port is not None:
            app = health_app(controller.problems, controller.not_ready_reasons)
            servers.append(await serve(app, settings.health_port))
        if settings.metrics_port is not None:
            servers.append(
                await serve(metrics_app(controller.metrics.registry), settings.metrics_port)
            )
        await _until(stop, controller.run(), _watch(controller, kube, settings, stop))
    finally:
        for server in servers:
            await server.cleanup()
        await kube.close()


async def _watch(
    controller: Controller, kube: KubeClient, settings: Settings, stop: asyncio.Event
) -> None:
    await kopf.operator(
        registry=registry_for(controller, kube),
        settings=kopf_settings(),
        standalone=True,
        clusterwide=not settings.namespaces,
        namespaces=settings.namespaces,
    )
    stop.set()  # kopf handles the signals and raises its failures


async def _until(stop: asyncio.Event, *work: Any) -> None:
    """Run all work until `stop` is set; raise if any of it ends before."""
    tasks = [asyncio.ensure_future(each) for each in work]
    waiting = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait([*tasks, waiting], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (*tasks, waiting):
            task.cancel()
        results = await asyncio.gather(*tasks, waiting, return_exceptions=True)
    if stop.is_set():
        return
    for result in results:
        if isinstance(result, Exception):
            raise result
    raise RuntimeError("the operator ended without a stop signal")
