"""Draws the results of the equivalence benchmark: loss curves, and their differences below."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from support.equivalence.equal import DIVIDED, OURS, STOCK

COLOURS = {OURS: "#1f6fb4", STOCK: "#d1495b", DIVIDED: "#e0a030"}
NAMES = {
    OURS: "ddpjob, with changes",
    STOCK: "torchrun, with the same changes",
    DIVIDED: "the same, script keeps the batch",
}
LEAST = 1e-10  # what a logarithm can show of no difference at all


def draw(result: Mapping[str, Any], path: Path) -> None:
    """Draw the first seed of each task; an equal result makes an equal file."""
    runs = [run for run in result["runs"] if "curves" in run]
    mpl.rcParams.update({"svg.hashsalt": "ddpjob", "svg.fonttype": "none", "font.size": 9})
    figure = Figure(figsize=(5 * len(runs), 6.5), layout="constrained")
    axes = figure.subplots(2, len(runs), sharex="col", squeeze=False)
    for (above, below), run in zip(axes.T, runs, strict=True):
        above.set_title(f"{run['task']}, seed {run['seed']}: {run['changes']} changes")
        _losses(above, run)
        _differences(below, run)
        for each in (above, below):
            _changes(each, run)
    axes[0][0].set_ylabel("loss of the step")
    axes[1][0].set_ylabel("difference to the same run undisturbed")
    for row in axes:
        row[0].legend(fontsize=8, framealpha=0.9)
    figure.savefig(path, format="svg", metadata={"Date": None})


def _losses(axes: Axes, run: Mapping[str, Any]) -> None:
    curves = run["curves"]
    axes.plot(curves[STOCK]["loss"], color=COLOURS[STOCK], lw=0.8, label=NAMES[STOCK])
    axes.plot(curves["undisturbed"], color="#b0b0b0", lw=3, label="undisturbed")
    axes.plot(curves[OURS]["loss"], color=COLOURS[OURS], lw=1, ls="--", label=NAMES[OURS])
    axes.set_ylim(bottom=0)


def _differences(axes: Axes, run: Mapping[str, Any]) -> None:
    for name in (STOCK, DIVIDED, OURS):
        if name in run["curves"]:
            found = [max(each, LEAST) for each in run["curves"][name]["difference"]]
            axes.plot(found, color=COLOURS[name], lw=1, label=NAMES[name])
    axes.axhline(run["tolerance"]["curve"], color="black", lw=1, ls=":", label="tolerance")
    axes.set_yscale("log")
    axes.set_xlabel("step")


def _changes(axes: Axes, run: Mapping[str, Any]) -> None:
    for section in run["sections"][1:]:
        axes.axvline(section["first"], color="grey", lw=0.5, alpha=0.6, zorder=0)
