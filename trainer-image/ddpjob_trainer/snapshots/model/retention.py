"""The choice of the snapshots to delete in one storage: pure.

Retention ignores unusable snapshots: they stay for inspection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def steps_to_delete(complete: Sequence[int], newest: int, keep: int) -> list[int]:
    """Return the steps beyond `keep` of `complete`, newest first; `newest` always stays.

    A damaged snapshot of a later step may look complete. So the snapshot saved last is never
    deleted in favour of another one.
    """
    others = [step for step in complete if step != newest]
    return others[max(keep - 1, 0) :]
