"""Collectives of the script between two steps, which are refused.

A change of the workers breaks them where the loop cannot catch the error, so it would end every
process. The body of a step and `loop.evaluate()` are made for them.
"""

from __future__ import annotations

from torch import distributed

REMEDY = (
    "a collective ran between two steps, where a change of the workers would end all processes with "
    "its error. Put it into `with step:`, or into `with loop.evaluate():`. A call of "
    "`loop.model(...)` is a collective, too"
)


class BetweenSteps:
    """The time between two steps, but for evaluations."""

    def __init__(self) -> None:
        self._count: int | None = None  # collectives of the group at the begin; None: not between

    def begin(self) -> None:
        """Begin, or continue after an evaluation."""
        self._count = _collectives()

    def end(self) -> None:
        """End. Raise RuntimeError if a collective of the default group has run."""
        before, self._count = self._count, None
        if before is not None and _collectives() != before:
            raise RuntimeError(REMEDY)


def _collectives() -> int | None:
    """Return the number of collectives of the default group; None if it does not count them."""
    if not distributed.is_initialized():
        return None
    try:
        return int(distributed.group.WORLD._get_sequence_number_for_group())  # type: ignore[union-attr] # noqa: SLF001
    except (AttributeError, RuntimeError):  # another torch; a backend without numbers
        return None
