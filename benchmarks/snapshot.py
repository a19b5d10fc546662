"""What a snapshot costs: how long training is held up, and how long until it is durable.

One process with one core for its computing saves a state of a model and AdamW with ddpjob and by
torch's own means, one after the other within every repetition, beside what nothing can be faster
than: copying the same bytes in memory, and writing and syncing them.

    make bench-snapshot              10 MB to 2 GB, 5 repetitions, or REPEAT=N; some 30 minutes
    QUICK=1 make bench-snapshot      64 MB, one repetition; under a minute
    .venv/bin/python benchmarks/snapshot.py --markdown    the last results for docs/benchmarks.md
"""

from __future__ import annotations

import collections
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.figures import Figure, Summary, machine, versions
from benchmarks.show import hand_in, markdown

RESULT = Path(__file__).resolve().parent / "results" / "snapshot.json"
WORKLOAD = Path(__file__).resolve().parent / "workloads" / "saving.py"
SIZES = (10, 64, 256, 1000, 2000)  # megabytes
SAVES = 2  # in each process, after one that does not count
PEERS = ("torch.save", "DCP save", "DCP async_save, thread", "DCP async_save, process")
OVERLAPPED, AT_ONCE = "ddpjob", "ddpjob, no time to overlap"
MEMCPY, WRITE = "memcpy", "fsync write"

Taken = dict[str, dict[str, list[float | None]]]  # by measure and way


def main() -> int:
    console = Console(highlight=False)
    if "--markdown" in sys.argv[1:]:
        print(markdown(json.loads(RESULT.read_text())))
        return 0
    quick = os.environ.get("QUICK", "") not in ("", "0")
    repeat = 1 if quick else int(os.environ.get("REPEAT", "5"))
    facts, figures = machine(), []
    for size in (64,) if quick else SIZES:
        figures += measure(size, repeat, console)
    result: dict[str, Any] = {
        "name": "snapshot",
        "quick": quick,
        "machine": facts,
        "versions": versions("ddpjob", "torch"),
        "notes": [
            f"{SAVES} saves in each process; of torch's own, a pass of fsync is part of durable"
        ],
        "figures": [figure.to_json() for figure in figures],
    }
    hand_in(result, RESULT, console)
    return 0


def measure(size: int, repeat: int, console: Console) -> list[Figure]:
    """All ways for one size, in turns."""
    taken: Taken = collections.defaultdict(lambda: collections.defaultdict(list))
    enough = 0.0
    for number in range(repeat):
        console.print(f"{size} MB, repetition {number + 1} of {repeat}")
        for roof in run("roofs", size, 0.0):
            for name, seconds in roof.items():
                taken[name][name].append(seconds)
            enough = max(enough, 4 * roof[MEMCPY], 0.2)  # for a copy on a core that shares memory
        ways = [(OVERLAPPED, enough), (AT_ONCE, 0.0), *((peer, enough) for peer in PEERS)]
        for way, compute in ways[number % len(ways) :] + ways[: number % len(ways)]:
            for cost in run(OVERLAPPED if way == AT_ONCE else way, size, compute):
                for measure_name, seconds in cost.items():
                    taken[measure_name][way].append(seconds)
    copy, write = taken[MEMCPY][MEMCPY], taken[WRITE][WRITE]
    fastest_copy, fastest_write = Summary.of(copy).median, Summary.of(write).median
    stalls, durable = taken["stall"], taken["durable"]
    at_once = stalls.pop(AT_ONCE)
    durable.pop(AT_ONCE)
    return [
        Figure(f"training is held up, {size} MB", "s", OVERLAPPED, {**stalls, MEMCPY: copy},
               goal=0.005, limit=MEMCPY),
        Figure(f"the same, where the next step comes at once, {size} MB", "s", AT_ONCE,
               {AT_ONCE: at_once, MEMCPY: copy}, goal=1.2 * fastest_copy, limit=MEMCPY),
        Figure(f"until it is durable, {size} MB", "s", OVERLAPPED, {**durable, WRITE: write},
               goal=1.5 * fastest_write, limit=WRITE),
    ]  # fmt: skip


def run(way: str, size: int, compute: float) -> list[dict[str, float]]:
    """What one process says of its saves."""
    with tempfile.TemporaryDirectory(
        prefix="ddpjob-bench-", dir=os.environ.get("BENCH_DIR")
    ) as folder:
        command = [sys.executable, str(WORKLOAD), way, str(size), str(compute), str(SAVES), folder]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


if __name__ == "__main__":
    sys.exit(main())
