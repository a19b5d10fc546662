"""The form of an explanation."""

from __future__ import annotations

from typing import NamedTuple


class Entry(NamedTuple):
    """An explanation of a reason, in three short texts."""

    cause: str
    effect: str
    remedy: str


NOTHING = "Nothing is to be done."
