"""Reads and writes the DDPJobs themselves, and posts their events.

May not: know the objects of a job.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from ddpjob_operator.api import constants
from ddpjob_operator.api.stored_job import ENDS
from ddpjob_operator.kube.interface import (
    CONFLICT,
    NOT_FOUND,
    ApiError,
    ApiServer,
    UnreachableError,
    pages,
)
from ddpjob_operator.kube.reflector import PAGE
from ddpjob_operator.manifests.event import build_event
from ddpjob_operator.planner.actions import Event
from ddpjob_operator.request import Request

IDENTITY = ("name", "namespace", "uid", "resourceVersion")

log = logging.getLogger("ddpjob.cluster")


class Jobs:
    """The DDPJobs of the watched namespaces."""

    def __init__(self, kube: ApiServer, scopes: Iterable[str]) -> None:
        self._kube = kube
        self.scopes = tuple(scopes)  # part of the path for each namespace; empty text for all

    async def read(self, namespace: str, name: str) -> dict[str, Any] | None:
        """Read a job from the API server; return None if the job does not exist."""
        try:
            found: dict[str, Any] = await self._kube.send(Request("GET", _path(namespace, name)))
        except ApiError as error:
            if error.status == NOT_FOUND:
                return None
            raise
        return found

    async def list(self) -> dict[tuple[str, str], bool]:
        """List every job by namespace and name, with whether it has ended by its status."""
        found = {}
        for scope in self.scopes:
            path = f"/apis/{constants.API_VERSION}{scope}/{constants.PLURAL}"
            async for page in pages(self._kube, path, {"limit": PAGE}):
                for each in page["items"]:
                    key = each["metadata"]["namespace"], each["metadata"]["name"]
                    found[key] = (each.get("status") or {}).get("state") in ENDS
        return found

    async def delete(self, raw: Mapping[str, Any]) -> None:
        """Delete a job with its objects; if the job has changed since the read, do nothing."""
        metadata = raw["metadata"]
        unchanged = {field: metadata[field] for field in ("uid", "resourceVersion")}
        body = {
            "kind": "DeleteOptions",
            "apiVersion": "v1",
            "preconditions": unchanged,
            "propagationPolicy": "Background",
        }
        path = _path(metadata["namespace"], metadata["name"])
        try:
            await self._kube.send(Request("DELETE", path, body=body))
        except ApiError as error:
            if error.status not in (NOT_FOUND, CONFLICT):
                raise

    async def write_status(
        self, raw: Mapping[str, Any], status: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Write the status of a job and return the job as it is stored.

        Raise ApiError 409 if the job has changed since the read. The spec is not sent: the API
        server ignores it here, and it may have more levels than can be sent.
        """
        metadata = raw["metadata"]
        path = _path(metadata["namespace"], metadata["name"]) + "/status"
        body = {
            "apiVersion": constants.API_VERSION,
            "kind": constants.KIND,
            "metadata": {field: metadata[field] for field in IDENTITY if field in metadata},
            "status": status,
        }
        request = Request("PUT", path, body=body)
        written: dict[str, Any] = await self._kube.send(request)
        return written

    async def emit(self, raw: Mapping[str, Any], event: Event, now: datetime) -> None:
        """Post an event; if the post fails, log a warning."""
        metadata = raw["metadata"]
        body = build_event(metadata, event, now)
        path = f"/api/v1/namespaces/{metadata['namespace']}/events"
        try:
            await self._kube.send(Request("POST", path, body=body))
        except (ApiError, UnreachableError) as error:
            log.warning("cannot post event %s: %s", event.reason, error)


def _path(namespace: str, name: str) -> str:
    return f"/apis/{constants.API_VERSION}/namespaces/{namespace}/{constants.PLURAL}/{name}"
