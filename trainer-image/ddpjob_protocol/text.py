"""Words for messages that people read."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def plural(count: int, word: str) -> str:
    """Return a number with its word: "1 worker", "2 processes"."""
    return f"{count} {word if count == 1 else word + ('es' if word.endswith('s') else 's')}"


def some(names: Sequence[object], limit: int) -> str:
    """Return the first `limit` names, and the number of the others: "a, b and 3 more"."""
    rest = len(names) - limit
    return ", ".join(map(str, names[:limit])) + (f" and {rest} more" if rest > 0 else "")


def duration(seconds: float) -> str:
    """Return a duration in its largest units, as kubectl does: 45s, 12m, 5h, 3d4h."""
    whole = max(int(seconds), 0)
    for size, unit, smaller, part in ((86400, "d", 3600, "h"), (3600, "h", 60, "m")):
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size}{unit}" + (f"{rest}{part}" if rest else "")
    return f"{whole // 60}m" if whole >= 120 else f"{whole}s"


def byte_size(count: float) -> str:
    """Return a number of bytes with three digits: 512 B, 1.25 MB, 48.1 GB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB" if count < 999.5 else f"{count:.0f} TB"


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows of cells as lines, with the cells of each column aligned."""
    widths = [max(map(len, cells)) for cells in zip(*rows)]
    padded = (map(str.ljust, row, widths) for row in rows)
    return ["   ".join(cells).rstrip() for cells in padded]
