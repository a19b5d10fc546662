"""The data of a report: one run of a job, from the files of a local run or from a cluster."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

MAX_METRICS = 6  # of a page; the others are counted


@dataclasses.dataclass(frozen=True)
class Change:
    """One membership, and the time without a step that it cost. Times: seconds since the epoch."""

    id: str
    cause: str
    detail: str
    since: float
    until: float  # formation of the next membership, or the end
    workers: int
    world_size: int
    first_step: int | None = None
    first_step_at: float | None = None  # None: no step, or not known
    last_step: int | None = None
    last_step_at: float | None = None
    resumed_step: int | None = None
    repeated_steps: int = 0
    stall_seconds: float | None = None  # without a step before the first one; None: not known
    ended: tuple[str, ...] = ()  # members whose pods ended, with the reasons

    @property
    def step_seconds(self) -> float | None:
        """The mean duration of a step; None if it is not known."""
        times, steps = (self.first_step_at, self.last_step_at), (self.first_step, self.last_step)
        if times[0] is None or times[1] is None or steps[0] is None or steps[1] is None:
            return None
        return (times[1] - times[0]) / (steps[1] - steps[0]) if steps[1] > steps[0] else None


@dataclasses.dataclass(frozen=True)
class Point:
    """A reported step."""

    at: float
    step: int
    rate: float | None  # steps per second
    metrics: Mapping[str, float]


@dataclasses.dataclass(frozen=True)
class Hang:
    """A time without a step in one membership, with the ranks that the others waited for."""

    since: float
    until: float | None  # None: until now
    step: int
    text: str


@dataclasses.dataclass(frozen=True)
class Note:
    """A line about the run: a fault that was injected, an event, a problem."""

    at: float | None
    kind: str
    text: str


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of a job, up to its end or to `now`."""

    name: str
    source: str  # where the data come from, for people
    state: str
    message: str
    started: float
    now: float  # the end of the run, or the time of the observation
    ended: bool
    changes: tuple[Change, ...] = ()
    points: tuple[Point, ...] = ()
    hangs: tuple[Hang, ...] = ()
    notes: tuple[Note, ...] = ()
    step: int | None = None
    total_steps: int | None = None
    rate: float | None = None  # steps per second, of the last minute
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
    complete: bool = True  # the first membership is known; older ones are not missing

    @property
    def begin(self) -> float:
        """The time that the page begins with."""
        return self.started if self.complete or not self.changes else self.changes[0].since

    @property
    def elapsed(self) -> float:
        """Seconds that the page covers."""
        return max(0.0, self.now - self.begin)

    @property
    def metric_names(self) -> list[str]:
        """Names of all metrics, in the order of their first report."""
        names = {name: None for point in self.points for name in point.metrics}
        return list(names | dict.fromkeys(self.metrics))


def finite(value: object) -> float | None:
    """Return a number, or None for anything else; JSON of Python may hold NaN."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
