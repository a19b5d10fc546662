"""Runs Make targets, all of them and two at a time, and ends with one table and what failed.

Tests wait for processes and pods more than they compute: one after the other they leave a machine
of two cores idle half of the time. Targets begin in the order in which they are given.

A tier counts as passed when its target succeeded and left its own report behind
(tests/conftest.py writes it): a tier that could not run is a failure, never a silence.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

REPORTS = Path(__file__).resolve().parent.parent / "build" / "tiers"
COUNTS = ("collected", "passed", "failed", "skipped", "deselected", "minimum")
TIER = "test-"
AT_ONCE = 2


class Outcome(NamedTuple):
    """How one target ended."""

    target: str
    verdict: str
    counts: dict[str, int]
    seconds: float
    failures: list[str]  # lines


def run(target: str) -> Outcome:
    """Run one target; each line of its output comes with its name."""
    name = target.removeprefix(TIER)
    report = REPORTS / f"{name}.json"
    report.unlink(missing_ok=True)
    start = time.monotonic()
    _say(name, f"==== make {target}")
    succeeded = _make(target, name) == 0
    seconds = time.monotonic() - start
    _say(name, f"==== {'ok' if succeeded else 'FAILED'} after {seconds:.0f} s")
    verdict = "ok" if succeeded else "FAILED"
    if not target.startswith(TIER):
        return Outcome(target, verdict, {}, seconds, [])
    if not report.exists():
        return Outcome(target, "DID NOT RUN", {}, seconds, [])
    told = json.loads(report.read_text())
    failures = [f"LEAKED {process}" for process in told["leaked"]]
    for test, words in told["failures"].items():
        failures += [f"FAILED {test}", *words]
    return Outcome(target, verdict, told["counts"], seconds, failures)


def _make(target: str, name: str) -> int:
    command = [os.environ.get("MAKE", "make"), "--no-print-directory", target]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            _say(name, line.rstrip("\n"))
    return process.returncode


def _say(name: str, line: str) -> None:
    sys.stdout.write(f"{name:<8} | {line}\n")
    sys.stdout.flush()


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


def main(targets: list[str]) -> int:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        outcomes = [*pool.map(run, targets)]
    print("\n" + table(outcomes))
    for outcome in outcomes:
        for line in outcome.failures:
            print(f"{outcome.target:<14}{line}")
    return 0 if all(o.verdict == "ok" for o in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
