"""Shows what the equivalence benchmark found, for the terminal and for the documentation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from support.equivalence.equal import DIVIDED, HARMS, OURS, STOCK

COLUMNS = (OURS, STOCK, DIVIDED, *HARMS.values())

Result = Mapping[str, Any]


def verdict(result: Result) -> bool:
    """Ours is within the tolerance, every mistake beyond it, and deterministic mode exact."""
    return all(_is_right(run) for run in result["runs"])


def _is_right(run: Result) -> bool:
    found = {name: each["curve"] for name, each in run["differences"].items()}
    seen = all(found[name] > 1 for name in HARMS.values() if name in found)
    return found[OURS] <= 1 and seen and len({*run["digests"]}) <= 1


def show(result: Result, console: Console) -> None:
    """Two tables."""
    for title, head, rows in _tables(result):
        table = Table(title=title, title_justify="left")
        for name in head:
            table.add_column(name, justify="right")
        for row in rows:
            table.add_row(*row)
        console.print(table)
    console.print("equal" if verdict(result) else "NOT EQUAL")


def markdown(result: Result) -> str:
    """The same for a page."""
    lines = []
    for title, head, rows in _tables(result):
        lines += [f"**{title}**", "", _line(head), _line(("---",) + ("---:",) * (len(head) - 1))]
        lines += [*map(_line, rows), ""]
    facts = result["machine"]
    about = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    return "\n".join([*lines, f"{facts['cores']} cores of {facts['cpu']}, {about}."])


def _tables(result: Result) -> Iterator[tuple[str, tuple[str, ...], list[tuple[str, ...]]]]:
    for what, title in (
        ("curve", "Largest difference between loss curves, in tolerances"),
        ("final", "Largest difference between final parameters, in tolerances"),
    ):
        rows = [_row(run, what) for run in result["runs"]]
        yield title, ("", "changes", "tolerance", *COLUMNS), rows
    runs = [run for run in result["runs"] if run["digests"]]
    rows = [(_name(run), *(digest[:12] for digest in run["digests"])) for run in runs]
    if rows:
        head = ("", "one worker, undisturbed", "with changes")
        yield "Deterministic mode: SHA-256 of loss curve and parameters", head, rows
    rows = [
        (_name(run), *(_held_out(run["held_out"].get(name)) for name in ("undisturbed", *COLUMNS)))
        for run in result["runs"]
    ]
    yield "Held-out loss and accuracy in the end", ("", "undisturbed", *COLUMNS), rows


def _row(run: Result, what: str) -> tuple[str, ...]:
    found = run["differences"]
    differences = (_number(found[name][what]) if name in found else "" for name in COLUMNS)
    return _name(run), str(run["changes"]), f"{run['tolerance'][what]:.1e}", *differences


def _name(run: Result) -> str:
    return f"{run['task']}, seed {run['seed']}"


def _held_out(found: Mapping[str, float] | None) -> str:
    return f"{found['loss']:.5f}, {found['accuracy']:.2%}" if found else ""


def _number(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:,.0f}"


def _line(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"
