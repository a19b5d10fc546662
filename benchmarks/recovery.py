"""The time for which a job stalls at a change: ddpjob, torchrun, torchft, in turns.

Three nodes with one process each train a model on CPU. Nodes die, fall silent, come and go, a
training process dies; the clock runs until the first step that the whole new group completed. Peers
take turns within every repetition; which node it happens to changes, too.

    make bench-recovery              7 repetitions, or REPEAT=N; some 65 minutes
    QUICK=1 make bench-recovery      1 repetition, ddpjob alone; under two minutes
    KILLS_ONLY=1 make bench-recovery    killed nodes alone, of all; some 25 minutes
    .venv/bin/python benchmarks/recovery.py --markdown    the last results for docs/benchmarks.md
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))  # for `support`
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.figures import is_set, machine, versions
from benchmarks.peers import Recovery, run
from benchmarks.show import print_if_asked, show, write
from benchmarks.trials import TrialError

from support.networks import NetworkError

RESULT = Path(__file__).resolve().parent / "results" / "recovery.json"


def main() -> int:
    console = Console(highlight=False)
    if print_if_asked(RESULT):
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that nothing is left running
    quick, kills_only = is_set("QUICK"), is_set("KILLS_ONLY")
    facts = machine()
    repeat = 1 if quick else int(os.environ.get("REPEAT", "7"))

    kept = False

    def keep(bench: Recovery) -> None:
        nonlocal kept
        result: dict[str, Any] = {
            "name": "recovery",
            "quick": quick,
            "machine": facts,
            "versions": {**versions("ddpjob", "torch"), **bench.versions},
            "notes": bench.notes,
            "figures": [figure.to_json() for figure in bench.collected.figures()],
        }
        write(result, RESULT)
        kept = True

    try:
        asyncio.run(run(repeat, quick=quick, kills_only=kills_only, console=console, keep=keep))
    except (TrialError, NetworkError) as error:
        console.print(f"failed: {error}", markup=False)
        return 1
    except KeyboardInterrupt:
        whole = f"; {os.path.relpath(RESULT)} has the repetitions that are whole" if kept else ""
        console.print(f"interrupted{whole}")
        return 130
    show(json.loads(RESULT.read_text()), console)
    console.print(f"written to {os.path.relpath(RESULT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
