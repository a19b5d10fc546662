"""The result of a run of the equivalence benchmark, from its processes' files, and differences.

A step may be begun by several groups; the last group counts, which completed it.
Pure but for reading.
"""

from __future__ import annotations

import collections
import hashlib
import itertools
import json
import math
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ddpjob_protocol.messages.membership import MembershipId


class Section(NamedTuple):
    """Steps that one group did."""

    first: int
    world_size: int


class Trained(NamedTuple):
    """One run, from the first step to the last."""

    curve: tuple[float, ...]  # loss of each step: the mean over its samples
    sections: tuple[Section, ...]
    finals: tuple[tuple[float, ...], ...]  # parameters, of each process that came to the end
    loss: float  # on what was held out
    accuracy: float

    @property
    def digest(self) -> str:
        """Return the digest of every bit of the curve and the parameters."""
        numbers = (*self.curve, *itertools.chain(*sorted({*self.finals})))
        return hashlib.sha256(struct.pack(f"{len(numbers)}d", *numbers)).hexdigest()


class Row(NamedTuple):
    """The samples that one rank was about to learn from."""

    group: str
    step: int
    rank: int
    world_size: int
    losses: dict[str, float]  # by sample


def read(folder: Path) -> Trained:
    """Raises ValueError where a step or a rank's part of it is missing."""
    by_step: dict[int, dict[str, list[Row]]] = collections.defaultdict(
        lambda: collections.defaultdict(list)
    )
    for row in _rows(folder):
        by_step[row.step][row.group].append(row)
    if sorted(by_step) != list(range(len(by_step))):
        raise ValueError(f"steps are missing of {len(by_step)}")
    curve, sections, before = [], [], None
    for step in range(len(by_step)):
        group = max(by_step[step], key=MembershipId.parse)
        rows = by_step[step][group]
        curve.append(_mean(rows))
        if (group, rows[0].world_size) != before:
            before = group, rows[0].world_size
            sections.append(Section(step, rows[0].world_size))
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("*.final"))]
    if not found:
        raise ValueError("no process came to the end")
    finals = tuple(tuple(each["parameters"]) for each in found)
    return Trained(
        tuple(curve), tuple(sections), finals, found[0]["loss"], found[0]["accuracy"]
    )  # fmt: skip


def _rows(folder: Path) -> Iterator[Row]:
    for path in folder.glob("*.losses"):
        for line in path.read_text().splitlines(keepends=True):
            if line.endswith("\n"):  # else its writer was killed meanwhile
                yield Row(*json.loads(line))


def _mean(rows: Sequence[Row]) -> float:
    if {row.rank for row in rows} != set(range(rows[0].world_size)):
        raise ValueError(f"not all ranks report step {rows[0].step}")
    # A sample may come twice: a rank without a share does what another one does, with weight 0.
    losses = {sample: loss for row in rows for sample, loss in row.losses.items()}
    return math.fsum(losses.values()) / len(losses)


def curve_differences(one: Trained, others: Sequence[Trained]) -> list[float]:
    """Step by step, the largest one to any of the others."""
    curves = (other.curve for other in others)
    return [
        max(abs(mine - each) for each in rest)
        for mine, *rest in zip(one.curve, *curves, strict=True)
    ]


def final_difference(one: Trained, other: Trained) -> float:
    """The largest one of any parameter, in any process."""
    return max(
        abs(a - b)
        for mine, its in itertools.product({*one.finals}, {*other.finals})
        for a, b in zip(mine, its, strict=True)
    )


class Difference(NamedTuple):
    """The largest one of any step, and of any parameter."""

    curve: float
    final: float


class Yardstick:
    """Undisturbed runs, and what they allow: twice the largest difference between any two."""

    def __init__(self, undisturbed: Sequence[Trained]) -> None:
        self.undisturbed = undisturbed
        pairs = list(itertools.combinations(undisturbed, 2))
        self.tolerance = Difference(
            2 * max(max(curve_differences(one, [other])) for one, other in pairs),
            2 * max(final_difference(one, other) for one, other in pairs),
        )

    def measure(self, run: Trained, others: Sequence[Trained] = ()) -> Difference:
        """To the undisturbed runs, or to these others; in tolerances."""
        others = others or self.undisturbed
        return Difference(
            max(curve_differences(run, others)) / self.tolerance.curve,
            max(final_difference(run, other) for other in others) / self.tolerance.final,
        )
