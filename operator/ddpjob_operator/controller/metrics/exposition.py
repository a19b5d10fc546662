"""Renders samples in the text format of Prometheus: nothing has to be removed when a job ends.

May not: keep a sample.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from prometheus_client.utils import floatToGoString

from ddpjob_operator.controller.metrics.catalogue import Metric

_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


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


def head(metric: Metric) -> str:
    """Return the lines before the samples of a metric."""
    help_text = metric.text.replace("\\", r"\\").replace("\n", r"\n")
    return f"# HELP {metric.name} {help_text}\n# TYPE {metric.name} {metric.kind}\n"


def lines(sample: Sample) -> str:
    """Return the lines of a sample; a histogram has one for each bound, its count and its sum."""
    name, value = sample.metric.name, sample.value
    labels = ",".join(
        f'{label}="{text.translate(_ESCAPES)}"'
        for label, text in zip(sample.metric.labels, sample.labels, strict=True)
    )
    if not isinstance(value, Distribution):
        return f"{name}{{{labels}}} {float(value)}\n"
    bounds = [
        f'{name}_bucket{{{labels},le="{_bound(bound)}"}} {float(count)}\n'
        for bound, count in value.counts.items()
    ]
    count = value.counts[float("inf")]
    ends = f"{name}_count{{{labels}}} {float(count)}\n{name}_sum{{{labels}}} {value.sum}\n"
    return "".join(bounds) + ends


def _bound(bound: float) -> str:
    return str(floatToGoString(bound))  # type: ignore[no-untyped-call]
