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
