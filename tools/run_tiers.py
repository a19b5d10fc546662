"""Runs Make targets, all of them, and ends with one table.

    run_tiers.py lint test-unit test-e2e -- test-local

Those after each `--` run beside the others: tests of whole jobs mostly wait. What they print goes
to a file, and is shown at the end. A tier counts as passed when its target succeeded and left its
own count behind (tests/conftest.py writes it): a tier that could not run is a failure, never a
silence.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

REPORTS = Path(__file__).resolve().parent.parent / "build" / "tiers"
COUNTS = ("collected", "passed", "failed", "skipped", "deselected", "minimum")
TIER = "test-"


class Outcome(NamedTuple):
    """How one target ended."""

    target: str
    verdict: str
    counts: dict[str, int]
    seconds: float


def run(target: str, log: Path | None = None) -> Outcome:
    """Run one target; its output goes to the terminal as it comes, or to a file."""
    where = "" if log is None else f", beside the others; its output: {os.path.relpath(log)}"
    print(f"\n==== make {target}{where}", flush=True)
    report = REPORTS / f"{target.removeprefix(TIER)}.json"
    report.unlink(missing_ok=True)
    start = time.monotonic()
    command = [os.environ.get("MAKE", "make"), "--no-print-directory", target]
    if log is None:
        done = subprocess.run(command, check=False)
    else:
        with log.open("wb") as file:
            done = subprocess.run(command, check=False, stdout=file, stderr=subprocess.STDOUT)
    seconds = time.monotonic() - start
    verdict = "ok" if done.returncode == 0 else "FAILED"
    if not target.startswith(TIER):
        return Outcome(target, verdict, {}, seconds)
    if not report.exists():
        return Outcome(target, "DID NOT RUN", {}, seconds)
    return Outcome(target, verdict, json.loads(report.read_text()), seconds)


def run_beside(targets: list[str]) -> list[Outcome]:
    """Run these, each into a file."""
    return [run(target, REPORTS / f"{target}.log") for target in targets]


def lanes(arguments: list[str]) -> Iterator[list[str]]:
    """What is between the dashes."""
    lane: list[str] = []
    for argument in arguments:
        if argument == "--":
            yield lane
            lane = []
        else:
            lane.append(argument)
    yield lane


def table(outcomes: list[Outcome]) -> str:
    """All outcomes, one line each."""
    header = f"{'':<14}" + "".join(f"{name:>12}" for name in COUNTS) + f"{'seconds':>10}  result"
    lines = [
        f"{o.target:<14}"
        + "".join(f"{o.counts.get(name, '-'):>12}" for name in COUNTS)
        + f"{o.seconds:>10.1f}  {o.verdict}"
        for o in outcomes
    ]
    return "\n".join([header, *lines])


def main(arguments: list[str]) -> int:
    shown, *others = lanes(arguments)
    REPORTS.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(max(1, len(others))) as pool:
        beside = [pool.submit(run_beside, lane) for lane in others]
        outcomes = [run(target) for target in shown]
        for future in beside:
            for outcome in future.result():
                print(f"\n==== make {outcome.target} had printed", flush=True)
                print((REPORTS / f"{outcome.target}.log").read_text(errors="replace"))
                outcomes.append(outcome)
    print("\n" + table(outcomes))
    return 0 if all(o.verdict == "ok" for o in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
