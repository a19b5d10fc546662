"""Reads the files of steps (`workloads/common.py`): which groups stepped, and since when.

All times in seconds since the epoch, written by the training processes themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Step(NamedTuple):
    """One completed step of one process; number 0: it has just started."""

    at: float
    number: int
    world: int


class Formed(NamedTuple):
    """A new group of processes."""

    last: float  # the last step of any process before
    started: float  # the newest of its processes
    stepped: float  # all of them had completed a step in it


class StepLogs:
    """The steps of all processes that ever were in one job."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._steps: dict[Path, list[Step]] = {}
        self._read: dict[Path, int] = {}  # bytes

    def update(self) -> None:
        """Read what is new; an incomplete line is left for later."""
        for path in self._folder.glob("*.steps"):
            with path.open("rb") as file:
                file.seek(self._read.setdefault(path, 0))
                whole, newline, _ = file.read().rpartition(b"\n")
            self._read[path] += len(whole + newline)
            self._steps.setdefault(path, []).extend(map(_parse, whole.splitlines()))

    def started(self) -> int:
        """Return the number of processes that have started."""
        return len(self._steps)

    def are_stepping(self, world: int, since: float) -> bool:
        """Return whether all of a group of that size have done a step after that time."""
        lasts = [steps[-1] for steps in self._steps.values() if steps]
        return sum(s.world == world and s.number > 0 and s.at > since for s in lasts) == world

    def group(self, world: int, after: float, *, fresh: bool = False) -> Formed | None:
        """The first group of that size that steps after that time; None if there is none yet.

        `fresh`: only processes that started after it, for a group no larger or smaller than before.
        """
        found = []
        for steps in self._steps.values():
            if steps and (steps[0].at > after or not fresh):
                mine = (s.at for s in _done(steps) if s.at > after and s.world == world)
                found += [(at, steps[0].at) for at in (next(mine, None),) if at is not None]
        group = sorted(found)[:world]
        if len(group) < world:
            return None
        first = group[0][0]
        before = (s.at for steps in self._steps.values() for s in _done(steps) if s.at < first)
        return Formed(max(before, default=first), max(start for _, start in group), group[-1][0])


def _done(steps: list[Step]) -> Iterator[Step]:
    return (step for step in steps if step.number > 0)


def _parse(line: bytes) -> Step:
    at, number, world = line.split()
    return Step(float(at), int(number), int(world))
