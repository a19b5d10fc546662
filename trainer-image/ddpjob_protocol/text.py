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
