"""What may go, of the snapshots in one place: pure.

What is unusable is no business of retention: it stays, for people to look at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddpjob_trainer.fences import limit

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from ddpjob_trainer.fences import Fence


def superfluous(complete: Sequence[int], newest: int, keep: int) -> list[int]:
    """Of these steps, newest first, those that are more than `keep`; `newest` always stays.

    A damaged one of a later step may look complete: what was just saved is never dropped for it.
    """
    others = [step for step in complete if step != newest]
    return others[max(keep - 1, 0) :]


def is_abandoned(
    step: int, number: int, age: timedelta, fences: Sequence[Fence], patience: timedelta
) -> bool:
    """Whether tensors that no manifest names will never have one that counts.

    They were written behind fence `number`, and finished that long ago by the store's own clock.
    """
    last = limit(fences, number)
    return (last is not None and step > last) or age > patience
