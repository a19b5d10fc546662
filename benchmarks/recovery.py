"""How long a job stands still when a node dies: ddpjob and stock torchrun, side by side.

Three nodes with one process each train a tiny model on CPU; one node is killed as a whole, agent
and processes at once, and the clock runs until the first step that all survivors completed
together. Peers take turns within every repetition; which node dies changes with the repetition.

    make bench-recovery              7 repetitions, or REPEAT=N; some 15 minutes
    QUICK=1 make bench-recovery      1 repetition without torchrun's defaults; under a minute
    .venv/bin/python benchmarks/recovery.py --markdown    the last results for docs/benchmarks.md
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections import defaultdict
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.figures import Figure, machine, versions
from benchmarks.floor import cold_start
from benchmarks.ours import LocalJob
from benchmarks.show import markdown, show
from benchmarks.stock import DEFAULT, TUNED, TorchrunJob
from benchmarks.trials import DECIDED, NODES, STARTED, STEPPED, Trial, TrialError, measure

RESULT = Path(__file__).resolve().parent / "results" / "recovery.json"
OURS, LIMIT = "ddpjob L0 cold", "two plain processes, cold start"
STOCK, STOCK_TUNED = "torchrun, default time-outs", "torchrun, shortest safe time-outs"
SERVICE, TCP_STORE = "ddpjob rendezvous service", "process with torch's TCPStore"
GOAL_SECONDS, GOAL_MB = 5.0, 40.0
CAP_SECONDS, QUICK_CAP_SECONDS = 150.0, 40.0

Samples = dict[str, list[float | None]]
Peer = Callable[[int], Awaitable[None]]  # measures once; given which node dies


class Recovery:
    """Collects what the trials give."""

    def __init__(self, cap: float, console: Console) -> None:
        self.cap = cap
        self.console = console
        self.recovery: Samples = {name: [] for name in (OURS, STOCK_TUNED, STOCK, LIMIT)}
        self.phases: dict[str, Samples] = defaultdict(dict)
        self.memory: Samples = {SERVICE: [], TCP_STORE: []}

    async def ours(self, victim: int) -> None:
        """That it does not recover is a failure."""
        trial = await measure(LocalJob, victim, self.cap)
        if trial.seconds is None:
            raise TrialError(f"ddpjob did not recover within {self.cap:g} s")
        self._keep(OURS, trial)
        self.memory[SERVICE].append(trial.service_bytes / 1e6)

    async def stock(self, victim: int, name: str, conf: dict[str, int]) -> None:
        """That it does not recover is a result."""
        trial = await measure(partial(TorchrunJob, conf=conf), victim, self.cap)
        self._keep(name, trial)
        self.memory[TCP_STORE].append(trial.service_bytes / 1e6)

    async def limit(self, victim: int) -> None:
        """Nobody dies here."""
        del victim
        self._time(LIMIT, await cold_start())

    def _keep(self, name: str, trial: Trial) -> None:
        self._time(name, trial.seconds)
        for phase, seconds in trial.phases().items():
            self.phases[phase].setdefault(name, []).append(seconds)

    def _time(self, name: str, seconds: float | None) -> None:
        self.recovery[name].append(seconds)
        told = f"{seconds:.2f} s" if seconds is not None else f">{self.cap:g} s"
        self.console.print(f"  {name}: {told}")

    def figures(self) -> list[Figure]:
        """In the order in which they are shown."""
        recovery = {name: samples for name, samples in self.recovery.items() if samples}
        title = "SIGKILL of a node → first step of the new group"
        return [
            Figure(title, "s", OURS, recovery, goal=GOAL_SECONDS, limit=LIMIT, cap=self.cap),
            *(
                Figure(f"Of that: {phase}", "s", OURS, self.phases[phase])
                for phase in (DECIDED, STARTED, STEPPED)
            ),
            Figure("Memory (RSS) where nodes meet", "MB", SERVICE, self.memory, goal=GOAL_MB),
        ]


async def run(repeat: int, *, quick: bool, console: Console) -> list[Figure]:
    """All repetitions; each begins with another peer."""
    bench = Recovery(QUICK_CAP_SECONDS if quick else CAP_SECONDS, console)
    peers: list[Peer] = [
        bench.limit,
        bench.ours,
        partial(bench.stock, name=STOCK_TUNED, conf=dict(TUNED)),
    ]
    if not quick:
        peers.append(partial(bench.stock, name=STOCK, conf=dict(DEFAULT)))
    await cold_start()  # not counted: brings torch into the page cache
    for number in range(repeat):
        victim = NODES - 1 - number % NODES
        console.print(f"repetition {number + 1} of {repeat}, node {victim} dies")
        first = number % len(peers)
        for peer in peers[first:] + peers[:first]:
            await peer(victim)
    return bench.figures()


def main() -> int:
    console = Console(highlight=False)
    if "--markdown" in sys.argv[1:]:
        print(markdown(json.loads(RESULT.read_text())))
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that nothing is left running
    quick = os.environ.get("QUICK", "") not in ("", "0")
    facts = machine()
    repeat = 1 if quick else int(os.environ.get("REPEAT", "7"))
    try:
        figures = asyncio.run(run(repeat, quick=quick, console=console))
    except TrialError as error:
        console.print(f"failed: {error}", markup=False)
        return 1
    except KeyboardInterrupt:
        return 130
    left_out = [f"QUICK: one repetition; left out: {STOCK} (some 47 s, see the full run)."]
    result: dict[str, Any] = {
        "name": "recovery",
        "quick": quick,
        "machine": facts,
        "versions": versions("ddpjob", "torch"),
        "notes": left_out if quick else [],
        "figures": [figure.to_json() for figure in figures],
    }
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    show(result, console)
    console.print(f"written to {os.path.relpath(RESULT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
