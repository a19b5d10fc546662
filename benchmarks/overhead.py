"""What ddpjob's loop costs beside one written by hand, and what deterministic mode does.

Two processes, each on a core of its own, train both ways by turns, a block of steps each: a pair of
blocks gives one ratio, and what drifts on the machine is in both of its halves.

    make bench-overhead              30 pairs in each of 2 starts, or REPEAT=N starts; some 20 minutes
    QUICK=1 make bench-overhead      the small model, 5 pairs, no agents; under a minute
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

from benchmarks.figures import TIMES, UPPER, Figure, machine, versions
from benchmarks.show import hand_in, markdown

from ddpjob_operator.local.service import free_port

RESULT = Path(__file__).resolve().parent / "results" / "overhead.json"
WORKLOAD = Path(__file__).resolve().parent / "workloads" / "side_by_side.py"
PROGRAMS = Path(sys.executable).parent
STEPS = {"small": 200, "medium": 10}  # in a block: both take a second or less
PAIRS = 30
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
    """What is held against a loop by hand."""

    label: str
    argument: str  # of the workload
    agents: bool
    is_held: bool  # to the goal


WAYS = (
    Way("Loop, under agents", "loop", agents=True, is_held=True),
    Way("Loop, without an agent", "loop", agents=False, is_held=True),
    Way("Loop, deterministic, 2 shards", "deterministic-2", agents=False, is_held=False),
    Way("Loop, deterministic, 8 shards", "deterministic-8", agents=False, is_held=False),
)


def main() -> int:
    console = Console(highlight=False)
    if "--markdown" in sys.argv[1:]:
        print(markdown(json.loads(RESULT.read_text())))
        return 0
    quick = os.environ.get("QUICK", "") not in ("", "0")
    starts = 1 if quick else int(os.environ.get("REPEAT", "2"))
    sizes, pairs = (["small"], 5) if quick else (["medium", "small"], PAIRS)
    facts = machine()
    notes: list[str] = []
    figures: list[Figure] = []
    for size in sizes:
        ways = [way for way in WAYS if not (quick and way.agents)]
        taken: dict[str, list[list[Pair]]] = {way.label: [] for way in ways}
        for number in range(starts):
            for way in ways:
                console.print(f"{size} model, start {number + 1} of {starts}: {way.label}")
                taken[way.label].append(run(size, way, pairs))
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


def run(size: str, way: Way, pairs: int) -> list[Pair]:
    """What two processes measure."""
    with tempfile.TemporaryDirectory(prefix="ddpjob-bench-") as name:
        folder = Path(name)
        file = folder / "pairs.jsonl"
        words = [str(WORKLOAD), size, way.argument, str(pairs), str(STEPS[size]), str(file)]
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
    """Ratios of all pairs."""
    ratios: list[float | None] = [pair[LOOP] / pair[BY_HAND] for pairs in starts for pair in pairs]
    goal = GOAL if way.is_held and size == "medium" else None
    name = f"a step, over one by hand, {size} model"
    return Figure(name, TIMES, way.label, {way.label: ratios}, goal=goal, by=UPPER)


def described(size: str, way: Way, starts: Sequence[Sequence[Pair]]) -> Iterator[str]:
    """What a mean of ratios does not say."""
    both = [pair for pairs in starts for pair in pairs]
    by_hand, loop = (statistics.median(pair[name] for pair in both) for name in (BY_HAND, LOOP))
    means = (statistics.fmean(pair[LOOP] / pair[BY_HAND] for pair in pairs) for pairs in starts)
    told = ", ".join(f"{mean:.3f}" for mean in means)
    yield (
        f"{size} model, {way.label}: {by_hand:.2f} ms by hand, {loop:.2f} ms (medians); mean ratio"
        f" of each start: {told}."
    )


if __name__ == "__main__":
    sys.exit(main())
