"""Frozen workers, and workers that only seem so: how soon a loss is decided, and false losses.

A job in live mode and one in restart mode have three workers each, which report ten steps a second.
First they train side by side for MINUTES, with LOAD busy processes beside them: a loss in this time
is a false one. Then workers are frozen (SIGSTOP to a whole node), each in a job of its own that
trains again. The lateness is that of a timer in this process: what the load does to a heartbeat.

    make bench-silence               30 minutes, with four busy processes by core;
    QUICK=1 make bench-silence       one minute;
    MINUTES=10 LOAD=0 FREEZES=1 make bench-silence    where others load the machine
    .venv/bin/python benchmarks/silence.py --markdown    the last results for docs/benchmarks.md
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))  # for `support`
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.figures import Figure, is_set, machine, versions
from benchmarks.ours import LocalJob
from benchmarks.show import hand_in, print_if_asked
from benchmarks.trials import NODES, Change, Trial, TrialError, measure

RESULT = Path(__file__).resolve().parent / "results" / "silence.json"
LIVE, RESTART = "ddpjob live", "ddpjob restart"
SCRIPTS = {LIVE: "live", RESTART: "restart"}
GOALS = {LIVE: 1.5, RESTART: None}
SECONDS, DECIDED = "frozen → first step of the others", "frozen → loss is decided"
FALSE, LATENESS = "False losses", "Lateness of a timer of 0.1 s"
TICK_SECONDS, CAP_SECONDS = 0.1, 60.0
BURN = "while True: pass"


def make_job(folder: Path, *, name: str) -> LocalJob:
    """Return a job that steps at leisure."""
    script = ["steady.py", SCRIPTS[name], str(folder)]
    return LocalJob(folder, stays=name == LIVE, script=script)


@contextlib.contextmanager
def busy(processes: int) -> Iterator[None]:
    """Let this number of processes compute."""
    running = [subprocess.Popen([sys.executable, "-c", BURN]) for _ in range(processes)]
    try:
        yield
    finally:
        for each in running:
            each.kill()
            each.wait()


async def train(name: str, seconds: float, console: Console) -> int:
    """Let a job train for this time; return the number of memberships that it lost a worker in."""
    with tempfile.TemporaryDirectory(prefix="ddpjob-bench-") as folder:
        job = make_job(Path(folder), name=name)
        try:
            await job.start()
            await _until_started(job, name)
            until, known = time.monotonic() + seconds, 1
            while time.monotonic() < until:
                await asyncio.sleep(1.0)
                causes = job.causes()
                if job.is_over():
                    raise TrialError(f"{name} ended: {causes}")
                for cause in causes[known:]:
                    console.print(f"  {name}: {cause}, {until - time.monotonic():.0f} s to go")
                known = len(causes)
            return job.causes().count("lost")
        finally:
            await job.stop()


async def _until_started(job: LocalJob, name: str) -> None:
    until = time.monotonic() + CAP_SECONDS
    while "started" not in job.causes():
        if job.is_over() or time.monotonic() > until:
            raise TrialError(f"{name} does not start")
        await asyncio.sleep(0.2)


async def watch_timer(samples: list[float | None]) -> None:
    """Record how late a timer is, until cancelled."""
    while True:
        due = time.monotonic() + TICK_SECONDS
        await asyncio.sleep(TICK_SECONDS)
        samples.append(time.monotonic() - due)


async def soak(seconds: float, console: Console) -> tuple[dict[str, int], list[float | None]]:
    """Return the false losses of each job, and the latenesses."""
    late: list[float | None] = []
    timer = asyncio.ensure_future(watch_timer(late))
    try:
        found = await asyncio.gather(*(train(name, seconds, console) for name in SCRIPTS))
    finally:
        timer.cancel()
    return dict(zip(SCRIPTS, found, strict=True)), late


async def freeze(name: str, freezes: int, console: Console) -> list[Trial]:
    """Freeze worker after worker; a new one joins after each."""
    trials: list[Trial] = []

    def keep(trial: Trial) -> None:
        if trial.group is None or trial.seconds is None or trial.decided is None:
            raise TrialError(f"{name} did not recover: {trial.change.value}")
        if trial.change is Change.FREEZE:
            trials.append(trial)
            last, decided = trial.group.last - trial.at, trial.decided - trial.at
            console.print(
                f"  {name}: seconds after the freeze: last step {last:.2f}, loss {decided:.2f},"
                f" first step of the others {trial.seconds:.2f}"
            )

    changes = [Change.FREEZE, Change.JOIN] * freezes
    await measure(
        partial(make_job, name=name), changes[:-1], victim=0, cap=lambda _: CAP_SECONDS, keep=keep
    )
    return trials


def _figures(
    false: dict[str, int], late: list[float | None], trials: dict[str, list[Trial]]
) -> list[Figure]:
    found = []
    for name in SCRIPTS:
        found.append(Figure(FALSE, "", name, {name: [float(false[name])]}, goal=0.0))
        if trials[name]:
            times = {name: [each.seconds for each in trials[name]]}
            decided = {name: [each.decided and each.decided - each.at for each in trials[name]]}
            found.append(Figure(SECONDS, "s", name, times, goal=GOALS[name]))
            found.append(Figure(DECIDED, "s", name, decided))
    return [*found, Figure(LATENESS, "s", "this process", {"this process": late})]


def main() -> int:
    """Run the benchmark, or show its last results."""
    console = Console(highlight=False)
    if print_if_asked(RESULT):
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that nothing is left running
    quick, facts = is_set("QUICK"), machine()
    minutes = float(os.environ.get("MINUTES") or (1 if quick else 30))
    load = int(os.environ.get("LOAD") or 4 * (os.cpu_count() or 1))
    freezes = int(os.environ.get("FREEZES") or (1 if quick else NODES))
    try:
        with busy(load):
            false, late = asyncio.run(soak(60 * minutes, console))
        trials = {
            name: asyncio.run(freeze(name, freezes, console)) if freezes else [] for name in SCRIPTS
        }
    except TrialError as error:
        console.print(f"failed: {error}", markup=False)
        return 1
    except KeyboardInterrupt:
        console.print("interrupted")
        return 130
    notes = [f"{minutes:g} minutes with {load} busy processes; workers are frozen without them."]
    result = {
        "name": "silence", "quick": quick, "machine": facts, "versions": versions("ddpjob", "torch"),
        "notes": notes, "figures": [each.to_json() for each in _figures(false, late, trials)],
    }  # fmt: skip
    hand_in(result, RESULT, console)
    return 1 if any(false.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
