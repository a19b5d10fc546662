"""The figures of the recovery benchmark, with their peers, goals and limits."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from benchmarks.figures import Figure
from benchmarks.trials import Change, Measure, Trial

L2, L2_LARGE = "ddpjob L2", "ddpjob L2, 21 M parameters"
L0_WARM, L0 = "ddpjob L0 warm", "ddpjob L0 cold"
STOCK, STOCK_TUNED = "torchrun, default time-outs", "torchrun, shortest safe time-outs"
TORCHFT = "torchft, shortest safe time-outs"
PEERS = {  # with the same model; torchft is a library to train with, as L2 is
    L2: (TORCHFT, STOCK_TUNED, STOCK),
    L0_WARM: (STOCK_TUNED, STOCK),
    L0: (STOCK_TUNED, STOCK),
    L2_LARGE: (),
}
LIMIT_COLD = "two plain processes, cold start"
LIMIT, LIMIT_LARGE = "regrouping in plain torch", "regrouping in plain torch, 21 M"
SERVICE, TCP_STORE = "ddpjob rendezvous service", "process with torch's TCPStore"
LIGHTHOUSE = "torchft lighthouse"
GOAL_MB = 40.0
CAP_SECONDS, SILENT_CAP_SECONDS = 150.0, 60.0


class Row(NamedTuple):
    """One figure: what is read from a change to one of ours. Equal titles make one table."""

    change: Change
    measure: Measure
    ours: str
    goal: float | None = None
    limit: str | None = None
    limit_by: tuple[Change, Measure] | None = (
        None  # by which the limit was measured, if not the same
    )


KILLED = (Change.KILL, Measure.SECONDS)
FIGURES = (
    Row(Change.KILL, Measure.SECONDS, L2, 0.3, LIMIT),
    Row(Change.KILL, Measure.SECONDS, L0_WARM, 2.0),
    Row(Change.KILL, Measure.SECONDS, L0, 5.0, LIMIT_COLD),
    Row(Change.KILL, Measure.SECONDS, L2_LARGE, None, LIMIT_LARGE),
    Row(Change.KILL, Measure.STALL, L2, None, LIMIT),
    Row(Change.KILL, Measure.STALL, L2_LARGE, None, LIMIT_LARGE),
    Row(Change.KILL, Measure.DECIDED, L2),
    Row(Change.KILL, Measure.DECIDED, L0_WARM),
    Row(Change.KILL, Measure.DECIDED, L0),
    Row(Change.KILL, Measure.STARTED, L0_WARM),
    Row(Change.KILL, Measure.STARTED, L0),
    Row(Change.KILL, Measure.STEPPED, L0_WARM),
    Row(Change.KILL, Measure.STEPPED, L0),
    Row(Change.FREEZE, Measure.SECONDS, L2),
    Row(Change.FREEZE, Measure.SECONDS, L0_WARM),
    Row(Change.FREEZE, Measure.SECONDS, L0),
    Row(Change.FREEZE, Measure.DECIDED, L2),
    Row(Change.FREEZE, Measure.DECIDED, L0_WARM),
    Row(Change.FREEZE, Measure.DECIDED, L0),
    Row(Change.FREEZE, Measure.AFTER, L2, 0.5, LIMIT, KILLED),
    Row(Change.FREEZE, Measure.AFTER, L0_WARM, 0.5),
    Row(Change.FREEZE, Measure.AFTER, L0, None, LIMIT_COLD, KILLED),
    Row(Change.CUT, Measure.SECONDS, L2),
    Row(Change.CUT, Measure.SECONDS, L0_WARM),
    Row(Change.CUT, Measure.DECIDED, L2),
    Row(Change.CUT, Measure.DECIDED, L0_WARM),
    Row(Change.CUT, Measure.AFTER, L2, 0.5, LIMIT, KILLED),
    Row(Change.CUT, Measure.AFTER, L0_WARM, 0.5),
    Row(Change.PROCESS, Measure.SECONDS, L2, None, LIMIT, KILLED),
    Row(Change.PROCESS, Measure.SECONDS, L0_WARM),
    Row(Change.PROCESS, Measure.SECONDS, L0),
    Row(Change.PROCESS, Measure.DECIDED, L2),
    Row(Change.PROCESS, Measure.DECIDED, L0_WARM),
    Row(Change.PROCESS, Measure.DECIDED, L0),
    Row(Change.JOIN, Measure.STALL, L2, 0.3, LIMIT),
    Row(Change.JOIN, Measure.STALL, L0_WARM, 1.0),
    Row(Change.JOIN, Measure.STALL, L0),
    Row(Change.JOIN, Measure.STALL, L2_LARGE, None, LIMIT_LARGE),
    Row(Change.JOIN, Measure.SECONDS, L2),
    Row(Change.JOIN, Measure.SECONDS, L0_WARM, 3.0),
    Row(Change.JOIN, Measure.SECONDS, L0, 3.0),
    Row(Change.JOIN, Measure.SECONDS, L2_LARGE),
    Row(Change.JOIN, Measure.DECIDED, L2),
    Row(Change.JOIN, Measure.DECIDED, L0_WARM),
    Row(Change.JOIN, Measure.DECIDED, L0),
    Row(Change.LEAVE, Measure.STALL, L2, 0.1, LIMIT),
    Row(Change.LEAVE, Measure.STALL, L0_WARM),
    Row(Change.LEAVE, Measure.STALL, L0),
    Row(Change.LEAVE, Measure.SECONDS, L2),
    Row(Change.LEAVE, Measure.SECONDS, L0_WARM),
    Row(Change.LEAVE, Measure.SECONDS, L0),
)


def cap(change: Change) -> float:
    """Seconds that a job gets to recover."""
    silent = change in {Change.FREEZE, Change.CUT}
    return SILENT_CAP_SECONDS if silent else CAP_SECONDS


class Collected:
    """The results of the trials, by measure and by peer."""

    def __init__(self) -> None:
        self._samples: dict[tuple[Change, Measure], dict[str, list[float | None]]] = defaultdict(
            dict
        )
        self._memory: dict[str, list[float | None]] = {SERVICE: [], TCP_STORE: [], LIGHTHOUSE: []}

    def keep(self, peer: str, trial: Trial) -> None:
        """Everything that is known of a trial."""
        for measure, value in trial.measures().items():
            self._samples[trial.change, measure].setdefault(peer, []).append(value)

    def keep_cold_start(self, seconds: float) -> None:
        """The limit of it."""
        samples = self._samples[Change.KILL, Measure.SECONDS]
        samples.setdefault(LIMIT_COLD, []).append(seconds)

    def keep_memory(self, name: str, size: int) -> None:
        """Keep the memory of the process where nodes meet."""
        self._memory[name].append(size / 1e6)

    def figures(self) -> list[Figure]:
        """In the order in which they are shown; without those of which nothing was measured."""
        found = [self._figure(row) for row in FIGURES if row.ours in self._of(row)]
        memory = {name: samples for name, samples in self._memory.items() if samples}
        name = "Memory (RSS) where nodes meet"
        return [*found, Figure(name, "MB", SERVICE, memory, goal=GOAL_MB)]

    def _of(self, row: Row) -> dict[str, list[float | None]]:
        return self._samples[row.change, row.measure]

    def _figure(self, row: Row) -> Figure:
        mine, samples = self._of(row), {row.ours: self._of(row)[row.ours]}
        samples |= {name: mine[name] for name in PEERS[row.ours] if name in mine}
        if row.limit:
            samples[row.limit] = self._samples[row.limit_by or (row.change, row.measure)][row.limit]
        name = f"{row.change.value}: {row.measure.value}"
        return Figure(
            name, "s", row.ours, samples, goal=row.goal, limit=row.limit, cap=cap(row.change)
        )
