"""Values that are read when Prometheus scrapes: nothing has to be removed when a job ends."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from ddpjob_operator.controller.metrics.catalogue import Metric

Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily


@dataclasses.dataclass(frozen=True)
class Distribution:
    """The values of a histogram: how many are at most as large as each bound, and their sum."""

    counts: Mapping[float, int]
    sum: float


@dataclasses.dataclass(frozen=True)
class Sample:
    """One value of a metric; the labels in the order of the metric."""

    metric: Metric
    labels: tuple[str, ...]
    value: float | Distribution


class SampleCollector(Collector):
    """A collector whose samples come from a function."""

    def __init__(self, metrics: Iterable[Metric], samples: Callable[[], Iterable[Sample]]) -> None:
        self._metrics = tuple(metrics)
        self._samples = samples

    def collect(self) -> Iterator[Family]:
        """Yield all metrics with their current samples."""
        families = {metric: _family(metric) for metric in self._metrics}
        for sample in self._samples():
            family = families[sample.metric]
            if isinstance(family, HistogramMetricFamily):
                assert isinstance(sample.value, Distribution)
                counts = [(_bound(bound), count) for bound, count in sample.value.counts.items()]
                family.add_metric(sample.labels, counts, sample.value.sum)
            else:
                assert not isinstance(sample.value, Distribution)
                family.add_metric(sample.labels, sample.value)
        yield from families.values()

    def describe(self) -> Iterator[Family]:
        """Yield all metrics without samples."""
        return (_family(metric) for metric in self._metrics)


def _family(metric: Metric) -> Family:
    kinds = {
        "counter": CounterMetricFamily,
        "gauge": GaugeMetricFamily,
        "histogram": HistogramMetricFamily,
    }
    found: Family = kinds[metric.kind](metric.name, metric.text, labels=metric.labels)
    return found


def _bound(bound: float) -> str:
    return str(floatToGoString(bound))  # type: ignore[no-untyped-call]
