"""Shows a result file: a table for the terminal, the same as Markdown for the documentation."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.figures import Summary
from rich.console import Console
from rich.table import Table

HEAD = ("", "median", "p90", "max", "n", "ratio to ours")


def show(result: Mapping[str, Any], console: Console) -> None:
    """A table for each figure, and whether its goal is met."""
    for figure in result["figures"]:
        table = Table(title=f"{figure['name']} ({figure['unit']})", title_justify="left")
        for number, head in enumerate(HEAD):
            table.add_column(head, justify="right" if number else "left")
        for row in _rows(figure):
            table.add_row(*row)
        console.print(table)
        console.print(_goal(figure), end="\n\n")
    for line in _circumstances(result):
        console.print(line)


def markdown(result: Mapping[str, Any]) -> str:
    """The same for a page."""
    lines: list[str] = []
    for figure in result["figures"]:
        lines += [f"**{figure['name']}** ({figure['unit']})", ""]
        lines += [_line(HEAD), _line(["---", *["---:"] * (len(HEAD) - 1)])]
        lines += [*map(_line, _rows(figure)), "", *filter(None, [_goal(figure)]), ""]
    return "\n".join([*lines, *(f"{line}  " for line in _circumstances(result))])


def _rows(figure: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    ours, limit = figure["names"]["ours"], figure["names"]["limit"]
    for name, samples in figure["samples"].items():
        summary = Summary.of(samples)
        numbers = (_number(each, figure) for each in (summary.median, summary.p90, summary.max))
        label = f"{name} (limit)" if name == limit else name
        yield (label, *numbers, str(summary.n), "1" if name == ours else _ratio(summary, figure))


def _number(value: float, figure: Mapping[str, Any]) -> str:
    if math.isinf(value):
        return f">{figure['cap']:g}"
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"


def _ratio(summary: Summary, figure: Mapping[str, Any]) -> str:
    if math.isinf(summary.median):
        return f">{figure['cap'] / figure['ours']:.2f}"
    return f"{summary.median / figure['ours']:.2f}"


def _goal(figure: Mapping[str, Any]) -> str:
    goal, ours = figure["goal"], figure["ours"]
    if goal is None:
        return ""
    met = ours <= goal if figure["better"] == "lower" else ours >= goal
    sign = "≤" if figure["better"] == "lower" else "≥"
    return f"Goal: {sign} {goal:g} {figure['unit']}, {'met' if met else 'MISSED'}."


def _circumstances(result: Mapping[str, Any]) -> Iterator[str]:
    facts = result["machine"]
    yield (
        f"{facts['cores']} cores of {facts['cpu']}, {facts['memory_gb']} GB, {facts['system']},"
        f" load {facts['load_before']} before the run."
    )
    yield ", ".join(f"{name} {version}" for name, version in result["versions"].items()) + "."
    yield from result["notes"]


def _line(cells: object) -> str:
    assert isinstance(cells, (list, tuple))
    return f"| {' | '.join(cells)} |"
