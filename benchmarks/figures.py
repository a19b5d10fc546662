"""The result of every benchmark: figures with their peers, as JSON, as a table, as Markdown.

A figure keeps all samples, so that the file can be printed again in both forms. A sample of
None did not end within the figure's cap; a median of such is null in the file and `>cap` in print.
"""

from __future__ import annotations

import dataclasses
import math
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

TIMES = "times"  # the unit of a ratio
MEDIAN, MEAN, UPPER = "median", "mean", "upper 95 % bound of the mean"

Samples = Mapping[str, Sequence[float | None]]  # by peer


@dataclasses.dataclass(frozen=True)
class Summary:
    """Samples in a few numbers; infinite where they did not end within the cap."""

    median: float
    mean: float
    upper: float  # end of the 95 % interval of the mean, by Student's t
    p90: float
    max: float
    n: int

    @classmethod
    def of(cls, samples: Sequence[float | None]) -> Summary:
        """p90 is the smallest sample that nine of ten do not exceed."""
        values = sorted(math.inf if value is None else value for value in samples)
        p90 = values[math.ceil(0.9 * len(values)) - 1]
        mean = statistics.fmean(values)
        return cls(
            statistics.median(values), mean, mean + _uncertainty(values), p90, values[-1],
            len(values),
        )  # fmt: skip

    def by(self, measure: str) -> float:
        """One of MEASURES."""
        return {MEDIAN: self.median, MEAN: self.mean, UPPER: self.upper}[measure]


@dataclasses.dataclass(frozen=True)
class Figure:
    """One measured number of ours, beside the same number of others."""

    name: str
    unit: str
    ours: str  # its name among the samples
    samples: Samples
    goal: float | None = None
    limit: str | None = None  # what nothing can be better than; its name among the samples
    cap: float | None = None
    better: str = "lower"
    by: str = MEDIAN  # MEAN for counts that are mostly 0, UPPER for ratios that are close to 1

    def to_json(self) -> dict[str, Any]:
        """`ratio`: how many times better ours is than the best peer; null where one of them is 0.

        `times_limit`: ours by it.
        """
        summaries = {name: Summary.of(samples) for name, samples in self.samples.items()}
        mine = summaries[self.ours]
        ours = mine.by(self.by)
        peers = {
            name: _finite(summary.by(self.by))
            for name, summary in summaries.items()
            if name not in (self.ours, self.limit)
        }
        known = [median for median in peers.values() if median is not None]
        lower = self.better == "lower"
        best = (min(known) if lower else max(known)) if known else None
        limit = summaries[self.limit].by(self.by) if self.limit else None
        ratio = None
        if best is not None and ours and best:
            ratio = best / ours if lower else ours / best
        return {
            "name": self.name,
            "unit": self.unit,
            "ours": ours,
            "by": self.by,
            "p90": mine.p90,
            "max": mine.max,
            "peers": peers,
            "limit": limit,
            "times_limit": ours / limit if limit else None,
            "goal": self.goal,
            "better": self.better,
            "ratio": ratio,
            "n": mine.n,
            "cap": self.cap,
            "samples": {name: list(samples) for name, samples in self.samples.items()},
            "names": {"ours": self.ours, "limit": self.limit},
        }


def is_set(name: str) -> bool:
    """Return whether a switch such as QUICK is on in the environment."""
    return os.environ.get(name, "") not in ("", "0")


def machine() -> dict[str, Any]:
    """Return the facts that the figures depend on."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "load_before": round(os.getloadavg()[0], 2),
    }


def versions(*packages: str) -> dict[str, str]:
    """Return the versions of Python and the packages."""
    return {"python": platform.python_version(), **{name: version(name) for name in packages}}


def _uncertainty(values: Sequence[float]) -> float:
    if len(values) < 2 or math.isinf(values[-1]):
        return math.inf
    z, freedom = statistics.NormalDist().inv_cdf(0.975), len(values) - 1
    t = z + (z**3 + z) / (4 * freedom)  # within 1 % from 10 values on
    return t * statistics.stdev(values) / math.sqrt(len(values))


def _cpu_model() -> str:
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor()


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
