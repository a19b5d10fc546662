"""The text that people read of a job: rows of tables, and the description.

May not: read a clock, send a request or print; the caller passes the time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

Object = dict[str, Any]
ENDED = ("Complete", "Failed")
HEADS = ("NAME", "STATE", "READY", "WORLD", "PROGRESS", "RESTARTS", "AGE")
WIDE = ("CAUSE", "SNAPSHOT", "MESSAGE")
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


def job_row(job: Object, now: datetime, *, wide: bool = False) -> tuple[str, ...]:
    """Return the cells of a job for HEADS, or for HEADS and WIDE."""
    metadata, status = job["metadata"], job.get("status") or {}
    membership, restarts = status.get("membership") or {}, status.get("restarts") or {}
    ended = state(job) in ENDED
    row = (
        str(metadata["name"]),
        state(job),
        NONE if ended else status.get("ready") or NONE,
        NONE if ended else str(membership.get("worldSize", NONE)),
        progress(job),
        str(restarts.get("total", 0)),
        age(metadata["creationTimestamp"], now),
    )
    snapshot = str((status.get("snapshot") or {}).get("step", NONE))
    cause = membership.get("cause") or NONE
    return (*row, cause, snapshot, message(job) or NONE) if wide else row


def state(job: Object) -> str:
    """Return the conditions in one word."""
    return str((job.get("status") or {}).get("state") or "Pending")


def message(job: Object) -> str:
    """Return the first line of the explanation of the state."""
    first, *_ = explanation(job).splitlines() or [""]
    return first


def explanation(job: Object) -> str:
    """Return reason and message of the condition that gives the state its name."""
    found = conditions(job)
    condition = found.get(state(job)) or found.get("Running")
    if condition is None:
        return ""
    text = str(condition.get("message") or "")
    plain = state(job) in ("Running", "Complete", "Waiting", "Suspended")
    return text if plain and text else f"{condition['reason']}: {text}" if text else ""


def conditions(job: Object) -> dict[str, Object]:
    """Return the conditions by type."""
    return {each["type"]: each for each in (job.get("status") or {}).get("conditions") or ()}


def progress(job: Object) -> str:
    """Return the steps done, of all steps if their number is known."""
    found = (job.get("status") or {}).get("progress") or {}
    step, total = found.get("step"), found.get("totalSteps")
    if step is None:
        return NONE
    return f"{step}/{total}" if total else str(step)


def age(moment: str | None, now: datetime) -> str:
    """Return the time since a moment, as kubectl does: 45s, 12m, 5h, 3d."""
    return NONE if moment is None else duration((now - parse(moment)).total_seconds())


def duration(seconds: float) -> str:
    """Return a duration in its largest units."""
    whole = max(int(seconds), 0)
    for size, unit, smaller, part in ((86400, "d", 3600, "h"), (3600, "h", 60, "m")):
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size}{unit}" + (f"{rest}{part}" if rest else "")
    return f"{whole // 60}m" if whole >= 120 else f"{whole}s"


def parse(moment: str) -> datetime:
    """Return a time of the API server."""
    return datetime.fromisoformat(moment).astimezone(UTC)
