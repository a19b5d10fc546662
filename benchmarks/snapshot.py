"""The cost of a snapshot: the stall of training, the time until it is durable, the restore.

One process with one core for its computing saves a state of a model and AdamW: with ddpjob, by
torch's own means and with DLRover's flash checkpoint, one after the other in every repetition.
The limits stand beside them: copying these bytes in memory, writing and syncing them, reading them,
sending them over a connection.

    make bench-snapshot              10 MB to 2 GB, 3 repetitions, or REPEAT=N; about an hour
    QUICK=1 make bench-snapshot      64 MB, one repetition, without DLRover; under a minute
    .venv/bin/python benchmarks/snapshot.py --markdown    the last results for docs/benchmarks.md
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.figures import TIMES, Figure, Summary, is_set, machine, versions
from benchmarks.peer_env import DLROVER_PACKAGE, PeerMissingError
from benchmarks.show import hand_in, print_if_asked

RESULT = Path(__file__).resolve().parent / "results" / "snapshot.json"
WORKLOADS = Path(__file__).resolve().parent / "workloads"
SIZES = (10, 64, 256, 1000, 2000)  # megabytes
SAVES = 2  # in each process, after one that does not count; as many are restored
IN_A_ROW = 5  # steps with a save after each
LARGEST_IN_A_ROW = 256  # megabytes
TORCH = ("torch.save", "DCP save", "DCP async_save, thread", "DCP async_save, process")
FLASH = "DLRover flash checkpoint"
FLASH_STARTS = 3  # now and then its process that writes does not answer within a minute
OVERLAPPED, AT_ONCE = "ddpjob", "ddpjob, no time to overlap"
PEER = "ddpjob, from a peer"
FROM_MEMORY = (OVERLAPPED, "torch.load", FLASH)
FROM_DISK = (OVERLAPPED, "torch.load", "DCP load")
MEMCPY, WRITE, READ, SOCKET = "memcpy", "fsync write", "read", "socket"
MEMORY = "/dev/shm"  # noqa: S108 - a file system in memory is what is meant

T = TypeVar("T")
Taken = dict[str, dict[str, list[float | None]]]  # by measure and way


def main() -> int:
    console = Console(highlight=False)
    if print_if_asked(RESULT):
        return 0
    quick = is_set("QUICK")
    repeat = 1 if quick else int(os.environ.get("REPEAT", "3"))
    facts = machine()
    bench = Bench(console, with_flash=not quick)
    figures: list[Figure] = []
    for size in (64,) if quick else SIZES:
        figures += bench.measure(size, repeat)
    result: dict[str, Any] = {
        "name": "snapshot",
        "quick": quick,
        "machine": facts,
        "versions": {**versions("ddpjob", "torch"), **bench.versions},
        "notes": [
            f"{SAVES} saves in each process; of others, a pass of fsync is part of durable",
            *bench.notes,
        ],
        "figures": [figure.to_json() for figure in figures],
    }
    hand_in(result, RESULT, console)
    return 0


class Bench:
    """Runs processes, and keeps their output."""

    def __init__(self, console: Console, *, with_flash: bool) -> None:
        self._console = console
        self.notes: list[str] = []
        self.versions: dict[str, str] = {}
        self._flash: Path | None = None
        if with_flash:
            try:
                self._flash = DLROVER_PACKAGE.programs() / "python"
                self.versions[DLROVER_PACKAGE.package] = DLROVER_PACKAGE.version
            except PeerMissingError as error:
                self.notes.append(f"without {FLASH}: {error}")
                console.print(self.notes[-1])

    def measure(self, size: int, repeat: int) -> list[Figure]:
        """All ways for one size, in turns."""
        taken: Taken = collections.defaultdict(lambda: collections.defaultdict(list))
        enough = 0.0
        for number in range(repeat):
            self._console.print(f"{size} MB, repetition {number + 1} of {repeat}")
            for roof in self._saved("roofs", size, 0.0):
                for name, seconds in roof.items():
                    taken[name][name].append(seconds)
                # for a copy on a core that shares memory
                enough = max(enough, 4 * roof[MEMCPY], 0.2)
            ways = [(OVERLAPPED, enough), (AT_ONCE, 0.0), *((way, enough) for way in self._peers())]
            for way, compute in _turned(ways, number):
                for cost in self._saved(OVERLAPPED if way == AT_ONCE else way, size, compute):
                    _add(taken, way, cost)
            self._restore(taken, size, number)
        return [*_of_saving(taken, size), *_of_restoring(taken, size)]

    def _peers(self) -> tuple[str, ...]:
        return (*TORCH, FLASH) if self._flash else TORCH

    def _saved(self, way: str, size: int, compute: float) -> list[dict[str, float]]:
        every = IN_A_ROW if compute and size <= LARGEST_IN_A_ROW else 0
        with _folder() as folder:
            return self._said(way, "saving.py", size, compute, SAVES, every, folder)

    def _restore(self, taken: Taken, size: int, number: int) -> None:
        for place, ways in (("memory", FROM_MEMORY), ("disk", FROM_DISK)):
            for way in _turned([way for way in ways if way != FLASH or self._flash], number):
                with _folder(MEMORY if place == "memory" else None) as folder:
                    for cost in self._said(way, "restoring.py", size, SAVES, folder):
                        taken[place][way].append(cost["restore"])
        with _folder() as folder:
            for cost in self._said("roofs", "restoring.py", size, SAVES, folder):
                taken["disk"][READ].append(cost[READ])
                taken["memory"][MEMCPY].append(cost[MEMCPY])
                taken["peer"][SOCKET].append(cost[SOCKET])
        with _folder(MEMORY) as folder:
            giver = subprocess.Popen(self._command(PEER, "restoring.py", size, SAVES, folder, 0))
            for cost in self._said(PEER, "restoring.py", size, SAVES, folder, 1):
                taken["peer"][PEER].append(cost["restore"])
            assert giver.wait() == 0

    def _said(self, way: str, workload: str, *arguments: object) -> list[dict[str, float]]:
        """Return the report of one process."""
        command = self._command(way, workload, *arguments)
        for _ in range(FLASH_STARTS if way == FLASH else 1):
            done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
            if done.returncode == 0:
                break
            self.notes.append(f"{way} did not start once: begun again")
        done.check_returncode()
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]

    def _command(self, way: str, workload: str, *arguments: object) -> list[str]:
        python = str(self._flash) if way == FLASH else sys.executable
        return [python, str(WORKLOADS / workload), way, *map(str, arguments)]


def _of_saving(taken: Taken, size: int) -> list[Figure]:
    copy, write = taken[MEMCPY][MEMCPY], taken[WRITE][WRITE]
    stalls, durable = taken["stall"], taken["durable"]
    at_once = stalls.pop(AT_ONCE)
    durable.pop(AT_ONCE)
    figures = [
        Figure(f"training is held up, {size} MB", "s", OVERLAPPED, {**stalls, MEMCPY: copy},
               goal=0.005, limit=MEMCPY),
        Figure(f"the same, where the next step comes at once, {size} MB", "s", AT_ONCE,
               {AT_ONCE: at_once, MEMCPY: copy}, goal=1.2 * _median(copy), limit=MEMCPY),
        Figure(f"until it is durable, {size} MB", "s", OVERLAPPED, {**durable, WRITE: write},
               goal=1.5 * _median(write), limit=WRITE),
    ]  # fmt: skip
    if "more" in taken:
        figures += [
            Figure(f"a save after every step: longer by, {size} MB", "s a step", OVERLAPPED,
                   taken["more"]),
            Figure(f"a save after every step: saved, {size} MB", TIMES, OVERLAPPED,
                   taken["share"], better="higher"),
        ]  # fmt: skip
    return figures


def _of_restoring(taken: Taken, size: int) -> list[Figure]:
    return [
        Figure(f"restored from {place}, {size} MB", "s", way, taken[key],
               goal=1.5 * _median(taken[key][limit]), limit=limit)
        for place, key, way, limit in (
            ("memory", "memory", OVERLAPPED, MEMCPY),
            ("another node", "peer", PEER, SOCKET),
            ("disk", "disk", OVERLAPPED, READ),
        )
    ]  # fmt: skip


def _add(taken: Taken, way: str, cost: dict[str, float]) -> None:
    for measure, value in cost.items():
        taken[measure][way].append(value)


def _turned(ways: Sequence[T], number: int) -> list[T]:
    begin = number % len(ways)
    return [*ways[begin:], *ways[:begin]]


def _median(samples: Sequence[float | None]) -> float:
    return Summary.of(samples).median


@contextlib.contextmanager
def _folder(where: str | None = None) -> Iterator[Path]:
    """One on the disk, or elsewhere; empty, and gone afterwards."""
    with tempfile.TemporaryDirectory(
        prefix="ddpjob-bench-", dir=where or os.environ.get("BENCH_DIR")
    ) as folder:
        yield Path(folder)


if __name__ == "__main__":
    sys.exit(main())
