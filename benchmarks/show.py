"""Shows a result file: a table for the terminal, the same as Markdown for the documentation."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.figures import MEDIAN, TIMES, Summary
from rich.console import Console
from rich.table import Table


def _head(figure: Mapping[str, Any]) -> tuple[str, ...]:
    return ("", figure.get("by", MEDIAN), "p90", "max", "n", "ratio to ours")


def write(result: Mapping[str, Any], path: Path) -> None:
    """Keep a result as JSON."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")


def hand_in(result: Mapping[str, Any], path: Path, console: Console) -> None:
    """Keep a result, show it, and print its path."""
    write(result, path)
    show(result, console)
    console.print(f"written to {os.path.relpath(path)}")


def print_if_asked(path: Path) -> bool:
    """Print the kept result as Markdown if the command line has --markdown; return whether it has."""
    asked = "--markdown" in sys.argv[1:]
    if asked:
        print(markdown(json.loads(path.read_text())))
    return asked


def show(result: Mapping[str, Any], console: Console) -> None:
    """A table for each name of figures, and whether their goals are met."""
    for figures in _by_name(result):
        title = f"{figures[0]['name']} ({figures[0]['unit']})"
        table = Table(title=title, title_justify="left")
        for number, head in enumerate(_head(figures[0])):
            table.add_column(head, justify="right" if number else "left")
        for row in _rows(figures):
            table.add_row(*row)
        console.print(table)
        console.print("\n".join(_verdicts(figures)), end="\n\n")
    for line in _circumstances(result):
        console.print(line)


def markdown(result: Mapping[str, Any]) -> str:
    """The same for a page."""
    lines: list[str] = []
    for figures in _by_name(result):
        lines += [f"**{figures[0]['name']}** ({figures[0]['unit']})", ""]
        head = _head(figures[0])
        lines += [_line(head), _line(["---", *["---:"] * (len(head) - 1)])]
        lines += [*map(_line, _rows(figures)), ""]
        lines += [f"{verdict}  " for verdict in _verdicts(figures)]
        lines += [""] if lines[-1] else []
    return "\n".join([*lines, *(f"{line}  " for line in _circumstances(result))])


def _by_name(result: Mapping[str, Any]) -> list[list[Mapping[str, Any]]]:
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for figure in result["figures"]:
        groups.setdefault(figure["name"], []).append(figure)
    return list(groups.values())


def _rows(figures: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, ...]]:
    """Ours first, one after the other; ratios are to the first of them."""
    first = figures[0]
    limits = {figure["names"]["limit"] for figure in figures}
    samples = {name: each for figure in figures for name, each in figure["samples"].items()}
    ours = [figure["names"]["ours"] for figure in figures]
    for name in sorted(samples, key=lambda name: (name not in ours, name in limits)):
        summary = Summary.of(samples[name])
        middle = summary.by(first.get("by", MEDIAN))
        numbers = (_number(each, first) for each in (middle, summary.p90, summary.max))
        label = f"{name} (limit)" if name in limits else name
        yield (label, *numbers, str(summary.n), "1" if name == ours[0] else _ratio(middle, first))


def _number(value: float, figure: Mapping[str, Any]) -> str:
    if math.isinf(value):
        return "unknown" if figure["cap"] is None else f">{figure['cap']:g}"
    if value == 0:
        return "0"
    if abs(value) < 1:
        return f"{value:.3f}"
    if figure["unit"] == TIMES:
        return f"{value:.3f}"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


def _ratio(middle: float, figure: Mapping[str, Any]) -> str:
    if not figure["ours"]:
        return ""
    if math.isinf(middle):
        return "" if figure["cap"] is None else f">{figure['cap'] / figure['ours']:.2f}"
    return f"{middle / figure['ours']:.2f}"


def _verdicts(figures: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for figure in figures:
        parts = [*_goal(figure)]
        if figure["times_limit"] is not None:
            parts.append(f"{figure['times_limit']:.1f} times the limit")
        if parts:
            yield f"{figure['names']['ours']}: {'; '.join(parts)}."


def _goal(figure: Mapping[str, Any]) -> Iterator[str]:
    goal, ours = figure["goal"], figure["ours"]
    if goal is not None:
        met = ours <= goal if figure["better"] == "lower" else ours >= goal
        sign = "≤" if figure["better"] == "lower" else "≥"
        yield f"goal {sign} {goal:g} {figure['unit']}, {'met' if met else 'MISSED'}"


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
