"""Words for messages that people read."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

CUT = "..."  # marks the missing part of a text


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


def plural(count: int, word: str) -> str:
    """Return a number with its word: "1 worker", "2 workers", "2 processes"."""
    return f"{count} {word if count == 1 else word + ('es' if word.endswith('s') else 's')}"


def shorten(text: str, limit: int) -> str:
    """Return at most `limit` characters from the start of a text, and cut between words."""
    if len(text) <= limit:
        return text
    head = text[: limit - len(CUT)]
    words = head if text[len(head)].isspace() else head.rpartition(" ")[0]
    return (words if len(words) > limit // 2 else head).rstrip() + CUT


def excerpt(text: str, limit: int) -> str:
    """Return the start of a foreign text, without what a terminal or a log would interpret."""
    short = shorten(text, limit)
    return short if short.isprintable() else ascii(short)[1:-1][:limit]


def last_lines(text: str, limit: int) -> str:
    """Return at most `limit` characters from the end of a text, and cut between lines."""
    if len(text) <= limit:
        return text
    tail = text[-(limit - len(CUT)) :]
    if "\n" not in tail:
        return CUT + tail
    return CUT + tail[tail.index("\n") :]


def ends(text: str, limit: int) -> str:
    """Return the first line of a text and its last lines, with at most `limit` characters."""
    if len(text) <= limit:
        return text
    first, _, rest = text.partition("\n")
    head = shorten(first, limit // 2)
    return f"{head}\n{last_lines(rest, limit - len(head) - 1)}" if rest else shorten(text, limit)
