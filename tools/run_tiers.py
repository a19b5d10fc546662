"""Runs Make targets one after the other, all of them, and ends with one table.

A tier counts as passed when its target succeeded and left its own count behind
(tests/conftest.py writes it): a tier that could not run is a failure, never a silence.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
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


def run(target: str) -> Outcome:
    """Run one target; its output goes to the terminal as it comes."""
    print(f"\n==== make {target}", flush=True)
    report = REPORTS / f"{target.removeprefix(TIER)}.json"
    report.unlink(missing_ok=True)
    start = time.monotonic()
    make = os.environ.get("MAKE", "make")
    succeeded = subprocess.run([make, "--no-print-directory", target], check=False).returncode == 0
    seconds = time.monotonic() - start
    if not target.startswith(TIER):
        return Outcome(target, "ok" if succeeded else "FAILED", {}, seconds)
    if not report.exists():
        return Outcome(target, "DID NOT RUN", {}, seconds)
    counts = json.loads(report.read_text())
    return Outcome(target, "ok" if succeeded else "FAILED", counts, seconds)


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
    outcomes = [run(target) for target in targets]
    print("\n" + table(outcomes))
    return 0 if all(o.verdict == "ok" for o in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
