"""Tables and the cells in them: columns of a steady width, and times.

May not: know a job.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime

from ddpjob_protocol.text import duration

NONE = "-"


class Table:
    """Lines of a table whose columns keep their width from one call to the next."""

    def __init__(self, *heads: str) -> None:
        self._rows: list[Sequence[str]] = [heads]
        self._widths = [0 for _ in heads]

    def lines(self, rows: Iterable[Sequence[str]]) -> Iterator[str]:
        """Yield the lines of new rows, the heads before the first ones."""
        new = [*self._rows, *rows]
        self._rows = []
        for row in new:
            self._widths = [max(w, len(c)) for w, c in zip(self._widths, row, strict=True)]
        for row in new:
            cells = (cell.ljust(width) for cell, width in zip(row, self._widths, strict=True))
            yield "   ".join(cells).rstrip()


def age(moment: str | None, now: datetime) -> str:
    """Return the time since a moment, as kubectl does: 45s, 12m, 5h, 3d."""
    return NONE if moment is None else duration((now - parse(moment)).total_seconds())


def parse(moment: str) -> datetime:
    """Return a time of the API server."""
    return datetime.fromisoformat(moment).astimezone(UTC)
