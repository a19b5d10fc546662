"""How long a job stands still when something happens to it: ddpjob and stock torchrun, in turns.

Three nodes with one process each train a model on CPU. Nodes die, freeze, come and go, a training
process dies; the clock runs until the first step that the whole new group completed. Peers take
turns within every repetition; which node it happens to changes, too.

    make bench-recovery              7 repetitions, or REPEAT=N; some 35 minutes
    QUICK=1 make bench-recovery      1 repetition, without torchrun; under two minutes
    .venv/bin/python benchmarks/recovery.py --markdown    the last results for docs/benchmarks.md
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.figures import machine, versions
from benchmarks.floor import cold_start, regroup
from benchmarks.ours import LocalJob
from benchmarks.show import markdown, show
from benchmarks.stock import DEFAULT, TUNED, TorchrunJob
from benchmarks.tables import (
    L0,
    L2,
    L2_LARGE,
    LIMIT,
    LIMIT_COLD,
    LIMIT_LARGE,
    SERVICE,
    STOCK,
    STOCK_TUNED,
    TCP_STORE,
    Collected,
    cap,
)
from benchmarks.trials import Change, Measure, Trial, TrialError, measure
from benchmarks.workloads.common import LARGE, TINY

RESULT = Path(__file__).resolve().parent / "results" / "recovery.json"
K, F, P, J, L = Change.KILL, Change.FREEZE, Change.PROCESS, Change.JOIN, Change.LEAVE
OURS = (K, J, L, J, F, J, P)  # done to one job, in this order
QUICK_OURS = (K, J, L)
STOCKS = (K, J, L, J, P)
SLOW_REPEAT = 3  # of torchrun's default time-outs: two minutes each
QUICK_NOTE = (
    f"QUICK: one repetition; left out: torchrun, 21 M parameters, frozen nodes, killed training"
    f" processes, and of {L0} all but a killed node."
)
FROZEN_NOTE = "A frozen node: measured once with torchrun, which never recovers from it."
SLOW_NOTE = f"{STOCK}: {SLOW_REPEAT} repetitions at most."

Peer = Callable[[int], Awaitable[None]]  # measures once; given which repetition it is


class Recovery:
    """The peers; collects what they give."""

    def __init__(self, console: Console) -> None:
        self.collected = Collected()
        self.notes: list[str] = []
        self._console = console

    async def ours(
        self, number: int, *, name: str, stays: bool, changes: Sequence[Change], size: str = TINY
    ) -> None:
        """That it does not recover is a failure."""

        def keep(trial: Trial) -> None:
            self._keep(name, trial)
            if trial.group is None:
                raise TrialError(f"{name} did not recover: {trial.change.value}")

        make = partial(LocalJob, stays=stays, size=size)
        memory = await measure(make, changes, victim=number, cap=cap, keep=keep)
        self.collected.keep_memory(SERVICE, memory)

    async def stock(self, number: int, *, name: str, conf: dict[str, int]) -> None:
        """That it does not recover is a result."""
        if name == STOCK and number >= SLOW_REPEAT:
            return
        make, keep = partial(TorchrunJob, conf=conf), partial(self._keep, name)
        for changes in [STOCKS, (F,)] if number == 0 else [STOCKS]:
            try:
                memory = await measure(make, changes, victim=number, cap=cap, keep=keep)
            except TrialError as error:
                first, _, rest = str(error).partition("\n")
                self.notes.append(f"{name}, repetition {number + 1} cut short: {first}.")
                self._console.print(f"  {self.notes[-1]}\n{rest}", markup=False)
            else:
                self.collected.keep_memory(TCP_STORE, memory)

    async def limit(self, _: int, *, name: str, size: str) -> None:
        """Of changes in memory."""
        for trial in await regroup(size):
            self._keep(name, trial)

    async def cold_limit(self, _: int) -> None:
        """Nobody dies here."""
        seconds = await cold_start()
        self.collected.keep_cold_start(seconds)
        self._console.print(f"  {LIMIT_COLD}: {seconds:.2f} s")

    def _keep(self, name: str, trial: Trial) -> None:
        self.collected.keep(name, trial)
        told = f">{cap(trial.change):g} s"
        if trial.group is not None:
            told = f"{trial.seconds:.3f} s, stall {trial.measures()[Measure.STALL]:.3f} s"
        self._console.print(f"  {name}: {trial.change.value}: {told}")


async def run(repeat: int, *, quick: bool, console: Console) -> Recovery:
    """All repetitions; each begins with another peer."""
    bench = Recovery(console)
    peers: list[Peer] = [
        bench.cold_limit,
        partial(bench.limit, name=LIMIT, size=TINY),
        partial(bench.ours, name=L2, stays=True, changes=QUICK_OURS if quick else OURS),
        partial(bench.ours, name=L0, stays=False, changes=[K] if quick else OURS),
    ]
    if not quick:
        peers += [
            partial(bench.limit, name=LIMIT_LARGE, size=LARGE),
            partial(bench.ours, name=L2_LARGE, stays=True, changes=[K, J], size=LARGE),
            partial(bench.stock, name=STOCK_TUNED, conf=dict(TUNED)),
            partial(bench.stock, name=STOCK, conf=dict(DEFAULT)),
        ]
        await cold_start()  # not counted: brings torch into the page cache
    for number in range(repeat):
        console.print(f"repetition {number + 1} of {repeat}")
        first = number % len(peers)
        for peer in peers[first:] + peers[:first]:
            await peer(number)
    return bench


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
        bench = asyncio.run(run(repeat, quick=quick, console=console))
    except TrialError as error:
        console.print(f"failed: {error}", markup=False)
        return 1
    except KeyboardInterrupt:
        return 130
    result: dict[str, Any] = {
        "name": "recovery",
        "quick": quick,
        "machine": facts,
        "versions": versions("ddpjob", "torch"),
        "notes": [*([QUICK_NOTE] if quick else [FROZEN_NOTE, SLOW_NOTE]), *bench.notes],
        "figures": [figure.to_json() for figure in bench.collected.figures()],
    }
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    show(result, console)
    console.print(f"written to {os.path.relpath(RESULT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
