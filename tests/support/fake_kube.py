"""An API server in memory, for tests: to the operator it is like the real one.

Tests act as scheduler, kubelet and garbage collector, interrupt watches, refuse, and crash their
client between any two requests.
"""

from __future__ import annotations

import asyncio
import dataclasses
import re
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from ddpjob_operator.kube.interface import ApiError, ApiServer
from ddpjob_operator.request import Request
from support.fake_objects import (
    JOBS,
    JSON,
    PODS,
    RESOURCES,
    Key,
    Objects,
    Resource,
    copy_of,
    merged,
    received,
    without,
)
from support.fake_watches import Watches

PATH = re.compile(
    r"(?P<prefix>/api/v1|/apis/[^/]+/[^/]+)(/namespaces/(?P<namespace>[^/]+))?"
    r"/(?P<plural>[^/]+)(/(?P<name>[^/]+)(/(?P<part>[^/]+))?)?"
)
MERGE_PATCH = "application/merge-patch+json"


@dataclasses.dataclass
class Refusal:
    """An answer to some requests, in place of the real one."""

    method: str
    plural: str
    error: ApiError
    times: int | None


@dataclasses.dataclass(frozen=True)
class Target:
    """The target of a path."""

    resource: Resource
    namespace: str | None
    name: str | None
    part: str | None

    @property
    def key(self) -> Key:
        assert self.namespace, "namespaced objects only"
        assert self.name
        return self.resource, self.namespace, self.name


class FakeKube(Watches, ApiServer):
    """One cluster. `calls` has every request, with WATCH as the method of watches."""

    in_cluster = False

    def __init__(self, objects: Objects | None = None) -> None:
        super().__init__(objects or Objects())
        self.calls: list[tuple[str, str]] = []
        self.before_request: Callable[[str, str], None] = lambda method, path: None
        self.after_request: Callable[[str, str], None] = lambda method, path: None
        self.closed = False
        self._refusals: list[Refusal] = []
        self._pages: dict[str, tuple[int, list[JSON]]] = {}

    # --- as scheduler, kubelet and garbage collector ----------------------------------------------

    def bind(self, namespace: str, pod: str, node: str) -> None:
        """Give a pod its node."""
        key = PODS, namespace, pod
        if self.objects.get(key)["spec"].get("nodeName"):
            raise ApiError(409, "Conflict", f"pod {pod} is already assigned to a node")
        scheduled = {"type": "PodScheduled", "status": "True"}
        self.objects.change(key, spec={"nodeName": node}, status={"conditions": [scheduled]})
        self.tell()

    def set_pod_status(self, namespace: str, pod: str, status: JSON) -> None:
        """Merge into a pod's status."""
        self.objects.change((PODS, namespace, pod), status=copy_of(status))
        self.tell()

    def finish_deletion(self, namespace: str, pod: str) -> None:
        """The containers of a deleted pod have ended."""
        key = PODS, namespace, pod
        assert self.objects.get(key)["metadata"].get("deletionTimestamp"), f"{pod} is not deleted"
        self.remove(namespace, pod)

    def remove(self, namespace: str, pod: str) -> None:
        """The pod is gone from one moment to the next."""
        self.objects.delete((PODS, namespace, pod), {"gracePeriodSeconds": 0})
        self.tell()

    def collect_garbage(self) -> None:
        """Delete what has no owner left."""
        self.objects.collect_garbage()
        self.tell()

    def add(self, obj: JSON) -> JSON:
        """Create an object as another client; with the status that it is given."""
        prefix = ("/apis/" if "/" in obj["apiVersion"] else "/api/") + obj["apiVersion"]
        resource = next(
            r for r in RESOURCES.values() if (r.prefix, r.kind) == (prefix, obj["kind"])
        )
        namespace = obj["metadata"].get("namespace", "default")
        made = self.objects.create(resource, namespace, obj, dry_run=False)
        if obj.get("status"):
            made = self.objects.change(
                (resource, namespace, made["metadata"]["name"]), status=obj["status"]
            )
        self.tell()
        return made

    def pods(self, namespace: str = "default") -> dict[str, JSON]:
        """All pods, by name."""
        return {p["metadata"]["name"]: copy_of(p) for p in self.objects.all(PODS, namespace, "")}

    def job(self, name: str, namespace: str = "default") -> JSON:
        """A job as it is now."""
        found: JSON = copy_of(self.objects.get((JOBS, namespace, name)))
        return found

    # --- faults -----------------------------------------------------------------------------------

    def refuse(
        self, method: str, plural: str, error: ApiError, times: int | None = None
    ) -> Refusal:
        """Answer such requests with an error, `times` times or until `allow`."""
        self._refusals.append(Refusal(method, plural, error, times))
        return self._refusals[-1]

    def allow(self) -> None:
        """Refuse nothing any more."""
        self._refusals.clear()

    def compact(self) -> None:
        """Forget the history, and with it the pages of lists."""
        super().compact()
        self._pages.clear()

    # --- the API ----------------------------------------------------------------------------------

    async def send(self, request: Request) -> Any:
        method, path = request.method, request.path
        target = self._enter(method, path)
        await asyncio.sleep(0)  # others may come first
        if method == "PATCH" and request.headers.get("Content-Type") != MERGE_PATCH:
            raise ApiError(415, "UnsupportedMediaType", "415: Unsupported Media Type")
        before = self.objects.revision
        answer = copy_of(self._answer(method, target, request.query, received(request.body)))
        if self.objects.revision != before:
            self.tell()
        self.after_request(method, path)
        return answer

    async def close(self) -> None:
        self.closed = True

    def _enter(self, method: str, path: str) -> Target:
        self.calls.append((method, path))
        self.before_request(method, path)
        found = PATH.fullmatch(path)
        resource = RESOURCES.get((found["prefix"], found["plural"])) if found else None
        if found is None or resource is None:
            raise ApiError(404, "Not Found", "404 page not found")
        for refusal in list(self._refusals):
            if (refusal.method, refusal.plural) == (method, resource.plural):
                if refusal.times is not None:
                    refusal.times -= 1
                    if not refusal.times:
                        self._refusals.remove(refusal)
                raise refusal.error
        return Target(resource, found["namespace"], found["name"], found["part"])

    def _answer(  # noqa: PLR0911 - a table
        self, method: str, target: Target, query: Mapping[str, str], body: JSON
    ) -> JSON:
        resource = target.resource
        match method, target.name, target.part:
            case "GET", None, None:
                return self._list(target, query)
            case "GET", _, None:
                return self.objects.get(target.key)
            case "POST", None, None if target.namespace:
                dry_run = query.get("dryRun") == "All"
                return self.objects.create(resource, target.namespace, body, dry_run=dry_run)
            case "POST", str(name), "binding" if resource is PODS:
                self.bind(target.key[1], name, body["target"]["name"])
                return {"kind": "Status", "apiVersion": "v1", "status": "Success"}
            case "PUT", _, None:
                return self.objects.replace(target.key, body)
            case "PUT", _, "status" if resource.status:
                return self.objects.replace(target.key, body, status=True)
            case "PATCH", _, None:
                return self.objects.replace(target.key, merged(self.objects.get(target.key), body))
            case "DELETE", _, None if target.name:
                return self.objects.delete(target.key, {**query, **(body or {})})
        raise ApiError(405, "MethodNotAllowed", f"{method} is not supported on this path")

    def _list(self, target: Target, query: Mapping[str, str]) -> JSON:
        token = query.get("continue", "")
        if token and token not in self._pages:
            raise ApiError(410, "Expired", "The provided continue parameter is too old")
        selector = query.get("labelSelector", "")
        now = list(self.objects.all(target.resource, target.namespace, selector))
        revision, items = self._pages.pop(token, (self.objects.revision, now))
        limit = int(query.get("limit", 0)) or len(items)
        metadata: JSON = {"resourceVersion": str(revision)}
        if len(items) > limit:
            metadata["continue"] = uuid.uuid4().hex
            self._pages[metadata["continue"]] = revision, items[limit:]
        shown = items[:limit]
        if not target.resource.custom:
            shown = [without(item, "kind", "apiVersion") for item in shown]
        kind, version = f"{target.resource.kind}List", target.resource.api_version
        return {"kind": kind, "apiVersion": version, "metadata": metadata, "items": shown}

    async def watch(
        self, path: str, *, query: Mapping[str, str], silence: float
    ) -> AsyncIterator[JSON]:
        target = self._enter("WATCH", path)
        async for event in self.open(target.resource, target.namespace, query, silence):
            yield event
