"""The logs of the processes of one run, and the verdict on them. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from ddpjob_protocol.messages.membership import MembershipId

_ERROR = r"^(?:\w+\.)*(\w+(?:Error|Exception|Exit)\b.*(?:\n.+)*)"
TOLERANCE = 1e-8  # relative; the models are float64, and sums differ by about 1e-15


class Row(NamedTuple):
    """The word of one process about one step."""

    step: int
    membership: str
    rank: int
    world: int
    loss: float
    samples: int
    norm: float  # of all parameters
    digest: str  # of their bits


class Ended(NamedTuple):
    """A process that ended."""

    code: int
    is_victim: bool  # the test had it killed
    output: str


class Run(NamedTuple):
    """One run of a script, from start to end."""

    rows: Sequence[Row]
    ended: Sequence[Ended]

    @property
    def error(self) -> str:
        """The exception that ended a process, as Python prints it; empty without one."""
        for process in self.ended:
            if process.code and not process.is_victim:
                found = re.findall(_ERROR, process.output, re.MULTILINE)
                return (
                    str(found[-1])
                    if found
                    else f"exit code {process.code}: {process.output[-300:]}"
                )
        return ""

    @property
    def steps(self) -> int:
        """Steps that were logged."""
        return max((row.step for row in self.rows), default=0)

    def by_step(self) -> dict[int, list[Row]]:
        """Return the rows of the last membership that did each step."""
        found: dict[int, list[Row]] = {}
        for row in self.rows:
            rows = found.setdefault(row.step, [])
            this = MembershipId.parse(row.membership)
            if rows and MembershipId.parse(rows[0].membership) > this:
                continue
            if rows and MembershipId.parse(rows[0].membership) < this:
                rows.clear()
            rows.append(row)
        return found

    def curve(self) -> dict[int, tuple[float, float]]:
        """Return for each step the loss over all its samples, and the norm of the parameters."""
        found = {}
        for step, rows in self.by_step().items():
            samples = sum(row.samples for row in rows)
            loss = sum(row.loss * row.samples for row in rows) / samples if samples else 0.0
            found[step] = loss, rows[0].norm
        return found

    def memberships(self) -> int:
        """Return the number of memberships that did a step."""
        return len({row.membership for row in self.rows})


def split_replicas(run: Run) -> int | None:
    """Return the first step after which replicas of one membership differ."""
    seen: dict[tuple[int, str], str] = {}
    wrong = [
        row.step
        for row in run.rows
        if seen.setdefault((row.step, row.membership), row.digest) != row.digest
    ]
    return min(wrong, default=None)


def verdict(run: Run, reference: Run | None, *, ends_early: bool = False) -> str:
    """Judge a run: same, refused, late, or different and from which step on.

    With `ends_early`, either may do a few steps more.
    """
    if run.error:
        how = "refused" if run.steps <= 1 else f"fails after step {run.steps}"
        return f"{how}: {run.error.splitlines()[0]}"
    if (step := split_replicas(run)) is not None:
        return f"DIFFERENT: replicas differ after step {step}"
    if reference is None or reference.error:
        return "same"
    mine, its = run.curve(), reference.curve()
    if ends_early:
        mine = {step: value for step, value in mine.items() if step in its}
        its = {step: value for step, value in its.items() if step in mine}
    if sorted(mine) != sorted(its):
        return f"DIFFERENT: {len(mine)} steps logged, not {len(its)}"
    for step in sorted(mine):
        for name, a, b in zip(("loss", "parameters"), mine[step], its[step], strict=True):
            if not abs(a - b) <= TOLERANCE * max(abs(b), 1e-6):
                return f"DIFFERENT: {name} after step {step}: {a:.9g}, not {b:.9g}"
    return "same"
