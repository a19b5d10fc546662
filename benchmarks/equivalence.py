"""Compares loss curves and parameters of training with and without changes of the workers.

Digits and a small GPT are trained undisturbed, with ten changes or more of the membership, in
deterministic mode, and by stock torchrun with the same changes. Differences are counted in
tolerances: twice the largest difference between undisturbed runs of one, two and three workers. To
show that this is strict enough, three mistakes are made on purpose, and must be detected.

    make bench-equivalence           3 seeds, or SEEDS="0 1 2"; some 40 minutes
    QUICK=1 make bench-equivalence   digits, one seed, few changes; some two minutes
    .venv/bin/python benchmarks/equivalence.py --markdown    the last results for docs/equivalence.md
    .venv/bin/python benchmarks/equivalence.py --plot        the same as docs/equivalence.svg
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))  # for `support`
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.figures import is_set, machine, versions
from benchmarks.trials import TrialError
from benchmarks.verdicts import markdown, show, verdict

from support.equivalence.equal import Plan, compare

RESULT = Path(__file__).resolve().parent / "results" / "equivalence.json"
PLOT = Path(__file__).resolve().parents[1] / "docs" / "equivalence.svg"
FULL = (Plan("digits", epochs=13, changes=10), Plan("gpt", epochs=4, changes=10))
SMOKE = (Plan("digits", epochs=6, changes=3),)


def main() -> int:
    console = Console(highlight=False)
    if "--markdown" in sys.argv[1:]:
        print(markdown(json.loads(RESULT.read_text())))
        return 0
    if "--plot" in sys.argv[1:]:
        plot()
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that nothing is left running
    quick = is_set("QUICK")
    seeds = [0] if quick else [int(seed) for seed in os.environ.get("SEEDS", "0 1 2").split()]
    result: dict[str, Any] = {
        "name": "equivalence",
        "quick": quick,
        "machine": machine(),
        "versions": versions("ddpjob", "torch"),
        "runs": [],
    }
    try:
        for number, seed in enumerate(seeds):
            for plan in SMOKE if quick else FULL:
                say = partial(_say, console, f"{plan.task}, seed {seed}")
                run = compare(plan, seed, say, first=number == 0, quick=quick)
                result["runs"].append(asyncio.run(run))
    except TrialError as error:
        console.print(f"failed: {error}", markup=False)
        return 1
    except KeyboardInterrupt:
        console.print("interrupted")
        return 130
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    show(result, console)
    console.print(f"written to {os.path.relpath(RESULT)}")
    if not quick:
        plot()
    return 0 if verdict(result) else 1


def _say(console: Console, where: str, what: str) -> None:
    console.print(f"{where}: {what}", markup=False)


def plot() -> None:
    """Draw the last results."""
    from benchmarks.drawing import draw  # noqa: PLC0415 - matplotlib, for this alone

    draw(json.loads(RESULT.read_text()), PLOT)


if __name__ == "__main__":
    sys.exit(main())
