"""The ranks that call `Snapshots.due`, and those that never do although others do.

A planned change waits for the last step of a membership only if every rank calls it. Ranks step
together, so a rank that has not called it after some steps of the others never will.
May not: read a clock, open anything.
"""

from __future__ import annotations

STEPS = 20  # of the others; a script may average its models every few steps only
SECONDS = 10.0  # after the first call


class StopAskers:
    """The ranks of one membership that call `Snapshots.due`."""

    def __init__(self) -> None:
        self._membership = ""
        self._ranks: set[int] = set()
        self._since = 0.0
        self._first_step: int | None = None
        self._reporter = ""  # worker that the problem is reported for

    def on_ask(self, membership: str, rank: int, now: float) -> str:
        """Record the first call of a rank; return the worker whose reported problem may end."""
        if membership != self._membership:
            self._membership, self._ranks, self._since = membership, set(), now
            self._first_step, self._reporter = None, ""
        self._ranks.add(rank)
        return self._reporter

    def silent_ranks(self, world_size: int) -> tuple[int, ...]:
        """Return the ranks that have not called it."""
        return tuple(rank for rank in range(world_size) if rank not in self._ranks)

    def on_step(self, membership: str, worker: str, step: int, now: float) -> bool:
        """Record a step that this worker reports; return True once when all ranks had their time."""
        if membership != self._membership or self._reporter:
            return False
        if self._first_step is None:
            self._first_step = step
        if step - self._first_step < STEPS or now - self._since < SECONDS:
            return False
        self._reporter = worker
        return True
