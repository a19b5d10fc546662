"""Reads what `workloads/step_forever.py` wrote: which groups stepped, and since when."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

TAIL_BYTES = 200  # more than a line


class Step(NamedTuple):
    """One completed step of one process; number 0: it has just started."""

    at: float  # seconds since the epoch
    number: int
    world: int


def are_stepping(folder: Path, world: int, number: int) -> bool:
    """Whether all ranks of a group of that size have done so many steps."""
    lasts = filter(None, map(_last, folder.glob("*.steps")))
    return sum(s.world == world and s.number >= number for s in lasts) == world


class Formed(NamedTuple):
    """A new group of processes; seconds since the epoch."""

    started: float  # the last of its processes
    stepped: float  # all of them had completed a step


def first_group(folder: Path, world: int, after: float) -> Formed | None:
    """The first group of that size that steps; None if there is none yet."""
    found = []
    for file in folder.glob("*.steps"):
        with file.open() as lines:
            start, step = _parse(lines.readline()), _parse(lines.readline())
        if start and step and step.world == world and start.at > after:
            found.append((step.at, start.at))
    group = sorted(found)[:world]
    if len(group) < world:
        return None
    return Formed(max(start for _, start in group), max(step for step, _ in group))


def _last(file: Path) -> Step | None:
    with file.open("rb") as lines:
        lines.seek(max(0, file.stat().st_size - TAIL_BYTES))
        whole, _, _ = lines.read().decode().rpartition("\n")
    return _parse(whole.rpartition("\n")[2] + "\n")


def _parse(line: str) -> Step | None:
    """None for a line that is not there yet, or not all of it."""
    fields = line.split()
    if not line.endswith("\n") or len(fields) != len(Step._fields):
        return None
    return Step(float(fields[0]), int(fields[1]), int(fields[2]))
