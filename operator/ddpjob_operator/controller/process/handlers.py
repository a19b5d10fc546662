"""The only user of kopf, which signs in, watches DDPJobs and names the changed ones.

A handler only names a job. No handler makes kopf write a finalizer or an annotation to an object.
May not: read a job, or keep any of its content.
"""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import kopf

from ddpjob_operator.api import constants
from ddpjob_operator.controller.controller import Controller
from ddpjob_operator.kube.client import KubeClient

REQUEST_SECONDS = 50
SERVER_SECONDS = 300  # the API server ends a watch then; the client ends it soon after
RECONNECT_SECONDS = (1, 2, 3, *[5] * 120)  # about ten minutes before kopf gives up


def registry_for(controller: Controller, kube: KubeClient) -> kopf.OperatorRegistry:
    """Return a registry with all handlers."""
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    async def login(**_: Any) -> kopf.ConnectionInfo:
        return kopf.ConnectionInfo(**await kube.credentials())

    @kopf.on.event(constants.GROUP, constants.VERSION, constants.PLURAL, registry=registry)
    async def job_changed(
        namespace: str | None, name: str | None, meta: kopf.Meta, event: kopf.RawEvent, **_: Any
    ) -> None:
        deleted = event["type"] == "DELETED"
        version = "" if deleted else str(meta.get("resourceVersion", ""))
        controller.job_changed(namespace or "", name or "", version)

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


def stop_at_signals(stop: asyncio.Event) -> None:
    """Set `stop` at SIGTERM and SIGINT, in place of an earlier handler."""
    loop = asyncio.get_running_loop()
    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, stop.set)


async def watch_jobs(
    controller: Controller, kube: KubeClient, namespaces: tuple[str, ...], stop: asyncio.Event
) -> None:
    """Watch until cancelled, and set `stop` at SIGTERM and SIGINT; raise kopf's failures.

    kopf would handle these signals by itself: it would cancel every task of this process at once.
    """
    others = asyncio.all_tasks()
    tasks = await kopf.spawn_tasks(
        registry=registry_for(controller, kube),
        settings=kopf_settings(),
        standalone=True,
        clusterwide=not namespaces,
        namespaces=namespaces,
    )
    stop_at_signals(stop)
    await kopf.run_tasks(tasks, ignored=others)
