"""Which samples an epoch loses or repeats while the membership changes: ours, and others' samplers.

Random histories of memberships are drawn once, and each sampler plays all of them: with every
change planned, and with some of them losses. A ledger counts the samples trained on.

    make bench-exactly-once              24 histories, or REPEAT=N; some minutes
    QUICK=1 make bench-exactly-once      3 histories, ddpjob and torch alone
    .venv/bin/python benchmarks/exactly_once.py --markdown    the last results for docs/benchmarks.md
"""

from __future__ import annotations

import collections
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))  # for `support`
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.figures import MEAN, Figure, is_set, machine, versions
from benchmarks.peer_env import DLROVER_PACKAGE, TORCHFT_PACKAGE, PeerMissingError, PeerPackage
from benchmarks.show import hand_in, print_if_asked

from support.histories import BATCH, EPOCHS, LARGEST, SAMPLES, SNAPSHOT_EVERY, Count, History, draw

RESULT = Path(__file__).resolve().parent / "results" / "exactly_once.json"
WORKLOAD = Path(__file__).resolve().parent / "workloads" / "samplers.py"
L2, L1 = "ddpjob L2", "ddpjob L1"
TORCH, DLROVER, TORCHFT = "torch", "DLRover", "torchft"
PLANNED, LOST = "planned", "lost"
KINDS = {
    PLANNED: "all changes are planned",
    LOST: f"some are losses, a snapshot every {SNAPSHOT_EVERY} steps",
}


class Contender(NamedTuple):
    """A sampler in one way of using it."""

    label: str
    name: str  # in workloads/samplers.py
    package: PeerPackage | None = None  # where it is, if not here


CONTENDERS = (
    Contender(L2, "L2"),
    Contender(L1, "L1"),
    Contender(f"{TORCH}, start_index", "torch"),
    Contender(f"{TORCH}, a checkpoint each epoch", "torch-epoch"),
    Contender(f"{DLROVER}, the script counts samples", "dlrover", DLROVER_PACKAGE),
    Contender(f"{DLROVER}, steps as in its example", "dlrover-step", DLROVER_PACKAGE),
    Contender(TORCHFT, "torchft", TORCHFT_PACKAGE),
)
MEASURES: tuple[tuple[str, Callable[[Count], int]], ...] = (
    ("never trained on in an epoch", lambda count: count.lost),
    ("trained on again in an epoch", lambda count: count.twice + count.again),
    ("the same, without steps done again since a snapshot", lambda count: count.twice),
)

Counts = dict[str, list[Count]]  # by sampler


def main() -> int:
    console = Console(highlight=False)
    if print_if_asked(RESULT):
        return 0
    quick = is_set("QUICK")
    histories = [draw(seed) for seed in range(3 if quick else int(os.environ.get("REPEAT", "24")))]
    facts, notes, found = machine(), [*described(histories)], versions("ddpjob", "torch")
    counts: dict[str, Counts] = {kind: {} for kind in KINDS}
    for contender in (each for each in CONTENDERS if each.package is None or not quick):
        console.print(contender.label)
        try:
            for kind, by_sampler in counts.items():
                by_sampler[contender.label] = played(contender, kind, histories)
        except PeerMissingError as error:
            notes.append(f"{contender.label}: left out, since it cannot be had here: {error}.")
        else:
            if contender.package is not None:
                found[contender.package.package] = contender.package.version
    result: dict[str, Any] = {
        "name": "exactly_once",
        "quick": quick,
        "machine": facts,
        "versions": found,
        "notes": [*notes, *told(counts[LOST][L1])],
        "figures": [figure.to_json() for figure in figures(counts)],
    }
    hand_in(result, RESULT, console)
    return 0


def played(contender: Contender, kind: str, histories: Sequence[History]) -> list[Count]:
    """Return the counts of a process that plays them all. Raises PeerMissingError."""
    python = contender.package.programs() / "python" if contender.package else sys.executable
    done = subprocess.run(
        [python, WORKLOAD, contender.name, kind],
        check=True, text=True, stdout=subprocess.PIPE, input=json.dumps(histories),
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    rows = (line for line in done.stdout.splitlines() if line.startswith("["))
    return [Count(*json.loads(row)) for row in rows]


def figures(counts: Mapping[str, Counts]) -> Iterator[Figure]:
    """Return the figures of all samplers; the limit of ours is 0 without a return to a snapshot."""
    for kind, by_sampler in counts.items():
        for measure, take in MEASURES[: 3 if kind == LOST else 2]:
            samples: dict[str, list[float | None]] = collections.defaultdict(list)
            for label, each in by_sampler.items():
                samples[label] += [float(take(count)) for count in each]
            name = f"{KINDS[kind]}: {measure}"
            peers = {label: row for label, row in samples.items() if label not in (L1, L2)}
            goes_back = kind == LOST and measure == MEASURES[1][0]
            yield Figure(name, "samples", L2, {L2: samples[L2], **peers}, goal=0, by=MEAN)
            goal = None if goes_back else 0
            yield Figure(name, "samples", L1, {L1: samples[L1]}, goal=goal, by=MEAN)


def described(histories: Sequence[History]) -> Iterator[str]:
    """Describe the histories."""
    changes = [change for history in histories for change in history.changes]
    lost = sum(not change.planned for change in changes)
    yield (
        f"{len(histories)} histories of {EPOCHS} epochs, {SAMPLES} samples each, {BATCH} in a step,"
        f" 1 to {LARGEST} ranks: {len(changes)} changes, {lost} of them losses in the second half."
    )


def told(counts: Sequence[Count]) -> Iterator[str]:
    """Describe the cost of a loss in snapshot mode."""
    steps, samples = sum(c.steps_again for c in counts), sum(c.again for c in counts)
    yield (
        f"ddpjob L1, losses: {steps} steps were done after a snapshot and again after a loss,"
        f" {samples} samples; all that was repeated."
    )


if __name__ == "__main__":
    sys.exit(main())
