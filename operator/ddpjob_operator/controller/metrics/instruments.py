"""The metrics of one operator: its own, and those of its jobs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
)
from prometheus_client.exposition import generate_latest

from ddpjob_operator.controller.metrics import catalogue
from ddpjob_operator.controller.metrics.catalogue import CONTROLLER, Metric
from ddpjob_operator.controller.metrics.exposition import Sample, head, lines
from ddpjob_operator.controller.metrics.job_store import JobStore
from ddpjob_operator.kube.interface import ApiError, ApiServer, UnreachableError
from ddpjob_operator.request import Request

# A time of creation for each counter would be one more series of it.
disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """The metrics of one operator."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = self._counter(catalogue.REQUESTS)
        self._passes = self._counter(catalogue.PASSES)
        self._errors = self._counter(catalogue.PASS_ERRORS).labels(CONTROLLER)
        self._seconds = self._histogram(catalogue.PASS_SECONDS).labels(CONTROLLER)
        self._retries = self._counter(catalogue.RETRIES).labels(CONTROLLER, CONTROLLER)
        for result in catalogue.VALUES["result"]:
            self._passes.labels(CONTROLLER, result)  # 0 until the first
        self.events = self._counter(catalogue.EVENTS)
        self.jobs = JobStore()
        self._silences: Callable[[], Iterable[tuple[str, float]]] = tuple

    def observe_pass(self, seconds: float, *, failed: bool) -> None:
        """Count a pass."""
        self._passes.labels(CONTROLLER, "error" if failed else "success").inc()
        self._seconds.observe(seconds)
        if failed:
            self._errors.inc()
            self._retries.inc()

    def watch_queue(
        self, workers: int, depth: Callable[[], float], oldest: Callable[[], float]
    ) -> None:
        """Report the queue at each scrape."""
        self._gauge(catalogue.MAX_WORKERS).labels(CONTROLLER).set(workers)
        self._gauge(catalogue.DEPTH).labels(CONTROLLER, CONTROLLER).set_function(depth)
        self._gauge(catalogue.OLDEST).set_function(oldest)

    def watch_leader(self, leads: Callable[[], bool]) -> None:
        """Report at each scrape whether this operator leads."""
        self._gauge(catalogue.LEADS).labels(CONTROLLER).set_function(leads)

    def watch_watches(self, silences: Callable[[], Iterable[tuple[str, float]]]) -> None:
        """Report at each scrape how long the watches are silent: path and seconds."""
        self._silences = silences

    def page(self) -> bytes:
        """Return all metrics as Prometheus reads them."""
        text = "".join((*self._watches(), self.jobs.page()))
        return generate_latest(self.registry) + text.encode()

    def _watches(self) -> Iterator[str]:
        longest: dict[str, float] = {}
        for path, seconds in self._silences():
            resource = _resource(path)
            longest[resource] = max(seconds, longest.get(resource, 0.0))
        yield head(catalogue.WATCHES)
        for resource, seconds in longest.items():
            yield lines(Sample(catalogue.WATCHES, (resource,), seconds))

    def _counter(self, metric: Metric) -> Counter:
        return Counter(metric.name, metric.text, metric.labels, registry=self.registry)

    def _gauge(self, metric: Metric) -> Gauge:
        return Gauge(metric.name, metric.text, metric.labels, registry=self.registry)

    def _histogram(self, metric: Metric) -> Histogram:
        return Histogram(
            metric.name,
            metric.text,
            metric.labels,
            buckets=metric.buckets,
            registry=self.registry,
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
