"""The cost of ddpjob's loop and of deterministic mode, beside a loop written by hand.

Two processes, each on a core of its own, train both ways, a step each by turns, so that what drifts
on the machine is in both. Where a training's tensors lie in memory is chance, and makes it a percent
or two faster or slower for as long as it runs: so they are started many times, and each start counts
as one sample.

    make bench-overhead              24 starts with 6 pairs of 10 steps, or REPEAT=N; some 20 minutes
    QUICK=1 make bench-overhead      the small model, one start, no agents; under a minute
    .venv/bin/python benchmarks/overhead.py --markdown    the last results for docs/benchmarks.md
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.figures import TIMES, UPPER, Figure, is_set, machine, versions
from benchmarks.show import hand_in, print_if_asked

from ddpjob_operator.local.simulated.rendezvous_process import free_port

RESULT = Path(__file__).resolve().parent / "results" / "overhead.json"
WORKLOAD = Path(__file__).resolve().parent / "workloads" / "side_by_side.py"
PROGRAMS = Path(sys.executable).parent
STEPS = {"small": 200, "medium": 10}  # of each in a pair: a second or less
PAIRS = 6  # in each start
STARTS = 24  # of what is held to the goal
OTHER_STARTS = 4
GOAL = 1.02  # of the medium model
BY_HAND, LOOP = "by hand", "loop"  # as the workload calls them
JOB = """
apiVersion: ddpjob.io/v1alpha1
kind: DDPJob
metadata: {{name: overhead}}
spec: {{replicas: 2, processesPerWorker: 1, command: {command}}}
"""

Pair = Mapping[str, float]  # milliseconds per step


class Way(NamedTuple):
    """The loop that is compared with a loop by hand."""

    label: str
    argument: str  # of the workload
    agents: bool
    is_held: bool  # to the goal, with the medium model


WAYS = (
    Way("Loop, under agents", "loop", agents=True, is_held=True),
    Way("Loop, without an agent", "loop", agents=False, is_held=True),
    Way("Loop, deterministic, 2 shards", "deterministic-2", agents=False, is_held=False),
    Way("Loop, deterministic, 8 shards", "deterministic-8", agents=False, is_held=False),
)


def main() -> int:
    console = Console(highlight=False)
    if print_if_asked(RESULT):
        return 0
    quick = is_set("QUICK")
    repeat = int(os.environ.get("REPEAT", STARTS))
    sizes = ["small"] if quick else ["medium", "small"]
    facts = machine()
    notes: list[str] = []
    figures: list[Figure] = []
    for size in sizes:
        ways = [way for way in WAYS if not (quick and way.agents)]
        taken: dict[str, list[list[Pair]]] = {way.label: [] for way in ways}
        for number in range(1 if quick else repeat):
            for way in ways:
                if number < OTHER_STARTS or goal(size, way):
                    console.print(f"{size} model, start {number + 1}: {way.label}")
                    taken[way.label].append(run(size, way))
        for way in ways:
            figures.append(figure(size, way, taken[way.label]))
            notes += described(size, way, taken[way.label])
    result: dict[str, Any] = {
        "name": "overhead",
        "quick": quick,
        "machine": facts,
        "versions": versions("ddpjob", "torch"),
        "notes": notes,
        "figures": [each.to_json() for each in figures],
    }
    hand_in(result, RESULT, console)
    return 0


def goal(size: str, way: Way) -> float | None:
    """Return the goal, if there is one."""
    return GOAL if way.is_held and size == "medium" else None


def run(size: str, way: Way) -> list[Pair]:
    """Return the measurements of two processes in one start."""
    with tempfile.TemporaryDirectory(prefix="ddpjob-bench-") as name:
        folder = Path(name)
        file = folder / "pairs.jsonl"
        words = [str(WORKLOAD), size, way.argument, str(PAIRS), str(STEPS[size]), str(file)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        if way.agents:
            (folder / "job.yaml").write_text(JOB.format(command=json.dumps(["torchrun", *words])))
            command = [str(PROGRAMS / "ddpjob"), "run", "--local", "job.yaml"]
            done = subprocess.run(
                command, check=False, cwd=folder, env=environment, stdout=subprocess.PIPE
            )
        else:
            rendezvous = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
            environment |= {**rendezvous, "WORLD_SIZE": "2"}
            other = subprocess.Popen([sys.executable, *words], env={**environment, "RANK": "1"})
            done = subprocess.run(
                [sys.executable, *words], check=False, env={**environment, "RANK": "0"}
            )
            other.wait()
        if done.returncode != 0:
            sys.stderr.buffer.write(done.stdout or b"")
            raise SystemExit(f"{way.label}: failed")
        return [json.loads(line) for line in file.read_text().splitlines()]


def figure(size: str, way: Way, starts: Sequence[Sequence[Pair]]) -> Figure:
    """The mean ratio of each start."""
    ratios: list[float | None] = [
        statistics.fmean(pair[LOOP] / pair[BY_HAND] for pair in pairs) for pairs in starts
    ]
    name = f"a step, over one by hand, {size} model"
    return Figure(name, TIMES, way.label, {way.label: ratios}, goal=goal(size, way), by=UPPER)


def described(size: str, way: Way, starts: Sequence[Sequence[Pair]]) -> Iterator[str]:
    """Return notes about facts that ratios hide."""
    both = [pair for pairs in starts for pair in pairs]
    by_hand, loop = (statistics.median(pair[name] for pair in both) for name in (BY_HAND, LOOP))
    yield (
        f"{size} model, {way.label}: {by_hand:.2f} ms by hand, {loop:.2f} ms (medians of"
        f" {len(both)} pairs in {len(starts)} starts)."
    )


if __name__ == "__main__":
    sys.exit(main())
