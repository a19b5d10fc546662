"""What may go, of the snapshots in one place: pure.

What is unusable is no business of retention: it stays, for people to look at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def steps_to_delete(complete: Sequence[int], newest: int, keep: int) -> list[int]:
    """Of these steps, newest first, those that are more than `keep`; `newest` always stays.

    A damaged one of a later step may look complete: what was just saved is never dropped for it.
    """
    others = [step for step in complete if step != newest]
    return others[max(keep - 1, 0) :]
