"""Draws the results of the link's benchmark: CPU and delays by the number of workers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
from benchmarks.link import IDLE, LAST, MEDIAN, STEPS
from matplotlib.axes import Axes
from matplotlib.figure import Figure


def draw(result: Mapping[str, Any], path: Path) -> None:
    """Draw the medians; an equal result makes an equal file."""
    mpl.rcParams.update({"svg.hashsalt": "ddpjob", "svg.fonttype": "none", "font.size": 9})
    figure = Figure(figsize=(8, 3), layout="constrained")
    left, right = figure.subplots(1, 2)
    _lines(left, result, {IDLE: "heartbeats only", STEPS: "5 steps/s per worker"})
    left.set_ylabel("cores of the service")
    _lines(right, result, {MEDIAN: "median survivor", LAST: "last survivor"})
    right.set_ylabel("seconds from a loss to the order")
    right.set_ylim(bottom=0)
    figure.savefig(path, format="svg", metadata={"Date": None})


def _lines(axes: Axes, result: Mapping[str, Any], names: Mapping[str, str]) -> None:
    for name, label in names.items():
        rows = [each for each in result["figures"] if each["name"] == name]
        sizes = [int(each["names"]["ours"].split()[0].replace(",", "")) for each in rows]
        axes.plot(sizes, [each["ours"] for each in rows], marker="o", ms=3, lw=1, label=label)
    axes.set_xscale("log")
    axes.set_xlabel("workers")
    axes.legend(fontsize=8)
