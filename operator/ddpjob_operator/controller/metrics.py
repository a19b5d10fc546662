"""The metrics of the operator, for Prometheus.

The only user of prometheus_client. No series has a job's name, because jobs are short-lived.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from ddpjob_operator.kube.interface import ApiError, ApiServer, UnreachableError
from ddpjob_operator.request import Request


class Metrics:
    """The metrics of one operator."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "ddpjob_api_requests",
            "Requests to the API server.",
            ("method", "resource", "code"),
            registry=self.registry,
        )
        self.passes = Counter(
            "ddpjob_reconciles", "Passes over a job.", ("result",), registry=self.registry
        )
        self.duration = Histogram(
            "ddpjob_reconcile_seconds", "Duration of a pass.", registry=self.registry
        )
        self.waiting = Gauge("ddpjob_queue_jobs", "Jobs in the queue.", registry=self.registry)
        self.delay = Gauge(
            "ddpjob_queue_oldest_seconds",
            "Longest time that a job has waited or been worked on.",
            registry=self.registry,
        )
        self.jobs = Gauge("ddpjob_jobs", "Jobs by state.", ("state",), registry=self.registry)
        self.events = Counter(
            "ddpjob_events", "Events of jobs.", ("reason",), registry=self.registry
        )


class InstrumentedApiServer:
    """A client of the API server whose requests are counted."""

    def __init__(self, kube: ApiServer, metrics: Metrics) -> None:
        self._kube = kube
        self._requests = metrics.requests
        self.in_cluster = kube.in_cluster

    async def send(self, request: Request) -> Any:
        """Forward to the client, counted and timed."""
        code = "200"
        try:
            return await self._kube.send(request)
        except ApiError as error:
            code = str(error.status)
            raise
        except UnreachableError:
            code = "none"
            raise
        finally:
            self._requests.labels(request.method, _resource(request.path), code).inc()

    def watch(
        self, path: str, *, query: Mapping[str, str], silence: float
    ) -> AsyncIterator[dict[str, Any]]:
        """Forward to the client, counted and timed."""
        self._requests.labels("WATCH", _resource(path), "200").inc()
        return self._kube.watch(path, query=query, silence=silence)

    async def close(self) -> None:
        """Forward to the client, counted and timed."""
        await self._kube.close()


def _resource(path: str) -> str:
    """`pods`, `ddpjobs/status`, `services/proxy`: without names, which have no end."""
    parts = [part for part in path.split("/") if part]
    rest = parts[2:] if parts[0] == "api" else parts[3:]
    if rest[:1] == ["namespaces"]:
        rest = rest[2:]
    return "/".join([rest[0], *rest[2:3]]) if rest else "api"
