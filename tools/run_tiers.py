"""Runs Make targets, all of them and DDPJOB_AT_ONCE (3) at a time, and ends with one table and what failed.

Tests wait for processes and pods more than they compute: one after the other they leave a machine
of two cores idle half of the time. Targets begin in the order in which they are given, but one with
a preparation begins when that is done: on a new machine programs are built for it. A build uses all
cores, and the longest tier waits for it, so beside it one target runs at a time.

A tier counts as passed when its target succeeded and left its own report behind
(tests/conftest.py writes it): a tier that could not run is a failure, never a silence.
A tier that takes longer than its budget in tests/tiers.toml is named; it does not fail.
With DDPJOB_RUN_AGAIN=1 a few failed tests are run again, alone (tools/flaky.py).
Ctrl-C, SIGTERM or SIGHUP ends the running targets, which clean up, and starts no further one. The
second of these signals kills the targets.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import tomllib
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, NamedTuple

from tools import flaky
from tools.machine_time import watch_machine

ROOT = Path(__file__).resolve().parent.parent
REPORTS = ROOT / "build" / "tiers"
COUNTED = [sys.executable, str(ROOT / "tools" / "cpu_seconds.py")]
COUNTS = ("collected", "passed", "failed", "skipped", "deselected", "minimum")
TIER = "test-"
AT_ONCE = int(os.environ.get("DDPJOB_AT_ONCE", "3"))
PREPARATION = {"test-e2e": "kind-build", "soak-e2e": "kind-build"}
SLOWEST = 10
WIDTH = len("soak-memberships") + 1
CLEANUP_SECONDS = 600.0  # namespaces of a cluster take minutes; after SIGTERM, before SIGKILL
INTERRUPTED = 130
ENV_RUN_AGAIN = "DDPJOB_RUN_AGAIN"


class Outcome(NamedTuple):
    """The result of one target; `report` is empty if the tier wrote none."""

    target: str
    verdict: str
    seconds: float
    cpu: float
    report: dict[str, Any]

    @property
    def tier(self) -> str:
        """Name in tests/tiers.toml and in prefixes of output."""
        return self.target.removeprefix(TIER)

    @property
    def failures(self) -> list[str]:
        """Lines that name failed tests and leaked processes."""
        lines = [f"LEAKED {process}" for process in self.report.get("leaked", [])]
        for test, words in self.report.get("failures", {}).items():
            lines += [f"FAILED {test}", *words]
        return lines


class Running:
    """The process groups of the targets that run."""

    def __init__(self) -> None:
        self._processes: set[subprocess.Popen[str]] = set()
        self._lock = threading.Lock()
        self.ending = False

    def add(self, process: subprocess.Popen[str]) -> None:
        """Note a process that leads a group; end it if all are ending."""
        with self._lock:
            self._processes.add(process)
        if self.ending:
            _signal(process, signal.SIGTERM)

    def remove(self, process: subprocess.Popen[str]) -> None:
        """Forget an ended process; kill the rest of its group if all are ending."""
        with self._lock:
            self._processes.discard(process)
        if self.ending:
            _signal(process, signal.SIGKILL)

    def end(self) -> None:
        """Let all targets clean up and end."""
        self.ending = True
        print("interrupted: the targets clean up; Ctrl-C again kills them", flush=True)
        for number in (signal.SIGTERM, signal.SIGKILL):
            with self._lock:
                left = list(self._processes)
            for process in left:
                _signal(process, number)
            deadline = time.monotonic() + CLEANUP_SECONDS
            with contextlib.suppress(KeyboardInterrupt):
                while any(each.poll() is None for each in left) and time.monotonic() < deadline:
                    time.sleep(0.1)


RUNNING = Running()


def _signal(process: subprocess.Popen[str], number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def run(target: str) -> Outcome:
    """Run one target; each line of its output comes with its name."""
    name = target.removeprefix(TIER)
    report, cpu = REPORTS / f"{name}.json", REPORTS / f"{name}.cpu"
    REPORTS.mkdir(parents=True, exist_ok=True)
    for path in (report, cpu):
        path.unlink(missing_ok=True)
    start = time.monotonic()
    _say(name, f"==== make {target}")
    succeeded = _make(target, name, cpu) == 0
    seconds = time.monotonic() - start
    verdict = "ok" if succeeded else "FAILED"
    _say(name, f"==== {verdict} after {seconds:.0f} s")
    said = json.loads(report.read_text()) if report.exists() else {}
    if target.startswith(TIER) and not said:
        verdict = "DID NOT RUN"
    used = float(cpu.read_text()) if cpu.exists() else 0.0
    return Outcome(target, verdict, seconds, used, said)


def _make(target: str, name: str, cpu: Path) -> int:
    make = [os.environ.get("MAKE", "make"), "--no-print-directory", *target.split()]
    with subprocess.Popen(
        [*COUNTED, str(cpu), *make],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,  # only `Running.end` signals it, and once
    ) as process:
        assert process.stdout is not None
        RUNNING.add(process)
        for line in process.stdout:
            _say(name, line.rstrip("\n"))
    RUNNING.remove(process)
    return process.returncode


def _say(name: str, line: str) -> None:
    sys.stdout.write(f"{name:<11} | {line}\n")
    sys.stdout.flush()


def table(outcomes: list[Outcome]) -> str:
    """All outcomes, one line each; CPU seconds are those outside containers."""
    names = (*COUNTS, "seconds", "CPU-seconds")
    lines = [f"{'':<{WIDTH}}" + "".join(f"{name:>12}" for name in names) + "  result"]
    for each in outcomes:
        counts = each.report.get("counts", {})
        cells = [str(counts.get(name, "-")) for name in COUNTS]
        cells += [f"{each.seconds:.1f}", f"{each.cpu:.1f}"]
        lines.append(f"{each.target:<{WIDTH}}{''.join(f'{c:>12}' for c in cells)}  {each.verdict}")
    return "\n".join(lines)


def most(outcomes: list[Outcome], measure: str) -> list[str]:
    """The tests with the largest figures of a report, set-up and tear-down included."""
    tests = [each for o in outcomes for each in o.report.get(measure, {}).items()]
    tests.sort(key=lambda each: -each[1])
    return [f"{seconds:>8.1f} s  {test}" for test, seconds in tests[:SLOWEST]]


def over_budget(outcomes: list[Outcome]) -> list[str]:
    """Tiers that took longer than they should on two quiet cores with everything cached."""
    tiers = tomllib.loads((ROOT / "tests" / "tiers.toml").read_text())
    budgets = {name: tier["budget_seconds"] for name, tier in tiers.items()}
    return [
        f"{each.target} took {each.seconds:.0f} s, its budget is {budgets[each.tier]} s"
        for each in outcomes
        if each.seconds > budgets.get(each.tier, float("inf"))
    ]


class Queue:
    """Targets that are still to begin."""

    def __init__(self, targets: list[str], preparing: dict[str, Future[Outcome]]) -> None:
        self._targets = list(targets)
        self._preparing = preparing
        self._changed = threading.Condition()
        for future in preparing.values():
            future.add_done_callback(lambda _: self._notify())

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _is_ready(self, target: str) -> bool:
        return target not in self._preparing or self._preparing[target].done()

    def next(self) -> str | None:
        """Wait for a target that can begin; None when all have begun."""
        with self._changed:
            while self._targets and not RUNNING.ending:
                ready = next(filter(self._is_ready, self._targets), None)
                if ready is not None:
                    self._targets.remove(ready)
                    return ready
                self._changed.wait(1.0)
        return None


def run_all(targets: list[str]) -> list[Outcome]:
    """Run all targets and their preparations."""
    preparations = {t: PREPARATION[t] for t in targets if t in PREPARATION}
    with ThreadPoolExecutor(AT_ONCE + len(preparations)) as pool:
        preparing = {target: pool.submit(run, name) for target, name in preparations.items()}
        queue = Queue(targets, preparing)

        def lane(number: int) -> list[Outcome]:
            if number > 0:
                wait(preparing.values())
            return [run(target) for target in iter(queue.next, None)]

        lanes = [pool.submit(lane, number) for number in range(AT_ONCE)]
        try:
            found = [future.result() for future in preparing.values()]
            found += [outcome for each in lanes for outcome in each.result()]
        except KeyboardInterrupt:
            RUNNING.end()
            raise
    return sorted(found, key=lambda each: [*preparations.values(), *targets].index(each.target))


def run_again(target: str, function: str) -> bool:
    """Run one test function of a tier, and return whether it passed."""
    name = target.removeprefix(TIER)
    _say(name, f"==== again: {function}")
    try:
        return _make(f"{target} ONLY={function}", name, REPORTS / f"{name}.cpu") == 0
    except KeyboardInterrupt:
        RUNNING.end()
        raise


def _interrupt(_number: int, _frame: object) -> None:
    """Interrupt the main thread."""
    raise KeyboardInterrupt


def main(targets: list[str]) -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    start, machine = time.monotonic(), watch_machine()
    try:
        succeeded = judge(run_all(targets))
    except KeyboardInterrupt:
        print("interrupted: nothing is left running")
        return INTERRUPTED
    print(f"{time.monotonic() - start:.0f} s in all; {machine()}")
    return 0 if succeeded else 1


def judge(outcomes: list[Outcome]) -> bool:
    """Print the table and the failures, and return whether the run has succeeded."""
    print("\n" + table(outcomes))
    print(f"\nThe {SLOWEST} slowest tests:", *most(outcomes, "seconds"), sep="\n")
    print("\nWith the most CPU seconds:", *most(outcomes, "cpu_seconds"), "", sep="\n")
    for line in over_budget(outcomes):
        print(line)
    for outcome in outcomes:
        for line in outcome.failures:
            print(f"{outcome.target:<{WIDTH}}{line}")
    failed = {each.target: each.report for each in outcomes if each.verdict != "ok"}
    again = os.environ.get(ENV_RUN_AGAIN) == "1"
    return not failed or (again and flaky.all_flaky(failed, run_again))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
