"""Breaks the product on purpose, once per mutation, and shows which tests see it.

    python tests/mutations/run.py                 all of the table
    python tests/mutations/run.py --only NAME     this one; may be given several times
    python tests/mutations/run.py --sample 100    100 of them, chosen at random
    python tests/mutations/run.py --list          names, and what each of them breaks

A copy of the working tree is broken, never the tree itself. First all tests that are named run in
the copy as it is. Then each mutation runs its own tests, and all of them have to fail. What became
of each is printed, and written to build/mutations.md. The exit code is 0 if all were caught.

Tests run in a fork of this process, which has imported what takes long and is not the project's.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn
from xml.etree import ElementTree as ET

import psutil
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from mutations.table import GUARANTEES, ROOT, Mutation, load

CAUGHT = "caught"
LIMIT_SECONDS = 600.0  # for the tests of one mutation
PACKAGES = {
    "operator": "ddpjob_operator",
    "trainer-image": "ddpjob_agent, ddpjob_protocol, ddpjob_trainer",
}
PRELOADED = (
    "torch.distributed", "torch.nn.parallel", "torch.utils.data", "numpy", "hypothesis.stateful",
    "pydantic", "aiohttp", "yaml",
)  # fmt: skip
REPORT = ROOT / "build" / "mutations.md"
PR_SET_CHILD_SUBREAPER = 36


class Ran(NamedTuple):
    """The outcome of some tests."""

    code: int | None  # pytest's; None: it did not end in time
    failed: frozenset[str]
    said: str


class Outcome(NamedTuple):
    """The outcome of one mutation."""

    mutation: Mutation
    verdict: str
    seconds: float


class Copy:
    """The working tree once more, where packages and tests are those of the copy."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # Compiled files are distinguished by the time of their source in seconds, and its size.
        self._times = itertools.count(int(time.time()), 2)
        command = ["git", "-c", "safe.directory=*", "ls-files", "-z", "-co", "--exclude-standard"]
        listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
        for name in set(listed.stdout.split("\0")) - {""}:
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name)
        subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)
        self._environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(str(folder / each) for each in PACKAGES),
        }

    def check(self) -> None:
        """Raises RuntimeError unless a child's child imports the packages of the copy."""
        for place, names in PACKAGES.items():
            told = f"import {names}; print({names.partition(',')[0]}.__file__)"
            child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {told!r}])"
            command = [sys.executable, "-c", child]
            found = subprocess.run(
                command, cwd="/", env=self._environment, check=True, capture_output=True, text=True
            )
            if not found.stdout.startswith(f"{self._folder / place}/"):
                raise RuntimeError(f"the copy is not what is tested: {found.stdout}")

    @contextlib.contextmanager
    def broken(self, mutation: Mutation) -> Iterator[bool]:
        """With this mutation; False if it does not apply."""
        path = self._folder / mutation.file
        text = path.read_text()
        mutated = mutation.mutated(text)
        try:
            self._write(path, text if mutated is None else mutated)
            yield mutated is not None
        finally:
            self._write(path, text)

    def _write(self, path: Path, text: str) -> None:
        path.write_text(text)
        moment = next(self._times)
        os.utime(path, (moment, moment))

    def test(self, tests: Sequence[str], limit: float | None = LIMIT_SECONDS) -> Ran:
        """Run them; nothing that they have started is left."""
        report, output = self._folder / "build" / "ran.xml", self._folder / "build" / "ran.txt"
        report.parent.mkdir(exist_ok=True)
        report.unlink(missing_ok=True)
        code: int | None = None
        child = os.fork()
        if child == 0:
            quiet = ("-q", "--tb=short", "-W", "ignore::pytest.PytestAssertRewriteWarning")
            self._be_pytest([*quiet, f"--junitxml={report}", *tests], output)
        try:
            code = psutil.Process(child).wait(limit)
        except psutil.TimeoutExpired:
            pass
        finally:
            end_all()
        failed = failed_in(report, tests) if report.exists() else frozenset[str]()
        return Ran(code, failed, output.read_text())

    def _be_pytest(self, arguments: list[str], output: Path) -> NoReturn:
        """In a child: as `python -m pytest ARGUMENTS` in the copy."""
        code = 1  # of a Python that ends by an exception
        try:
            self._settle(output)
            code = pytest.main(arguments)
        except BaseException:  # noqa: BLE001 - nothing of the child may go on in what follows
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def _settle(self, output: Path) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        with output.open("wb") as said, Path(os.devnull).open("rb") as nothing:
            for target, file in enumerate((nothing, said, said)):
                os.dup2(file.fileno(), target)
        os.chdir(self._folder)
        os.environ.update(self._environment)
        ours = {str(ROOT / each) for each in (*PACKAGES, "tests", "tests/mutations")}
        sys.path[:] = [str(self._folder / each) for each in PACKAGES] + [
            each for each in sys.path if each not in ours
        ]
        for name in [each for each in sys.modules if each.partition(".")[0] == "mutations"]:
            del sys.modules[name]


def failed_in(report: Path, tests: Sequence[str]) -> frozenset[str]:
    """Return the failed tests, without their parameters."""
    failed = {
        f"{case.get('classname')}.{str(case.get('name')).partition('[')[0]}"
        for case in ET.parse(report).iter("testcase")
        if case.find("failure") is not None or case.find("error") is not None
    }
    return frozenset(test for test in tests if dotted(test) in failed)


def dotted(test: str) -> str:
    file, _, name = test.partition("::")
    return f"{file.removesuffix('.py').replace('/', '.')}.{name.replace('::', '.')}"


def end_all() -> None:
    """End what the tests have started: orphans come to this process, which is a subreaper."""
    while left := psutil.Process().children(recursive=True):
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=1)


def judge(mutation: Mutation, applies: bool, ran: Ran | None) -> str:
    """Return whether the tests have detected the mutation."""
    if not applies or ran is None:
        return "STALE: its old text is not there exactly once"
    if ran.code is None:
        return CAUGHT if mutation.hangs else "HANGS"
    if ran.code == 0:
        return "NOT CAUGHT"
    if ran.code != 1:
        return f"BROKEN: pytest ends with {ran.code}"
    blind = [test for test in mutation.tests if test not in ran.failed]
    return f"NOT CAUGHT by {', '.join(blind)}" if blind else CAUGHT


def attempt(copy: Copy, mutation: Mutation, failing: frozenset[str] = frozenset()) -> Outcome:
    """Return the outcome; `failing` are tests that fail without any mutation."""
    started, ran = time.monotonic(), None
    if failing.intersection(mutation.tests):
        verdict = f"FAILS WITHOUT IT: {', '.join(failing.intersection(mutation.tests))}"
    else:
        with copy.broken(mutation) as applies:
            ran = copy.test(mutation.tests) if applies else None
        verdict = judge(mutation, applies, ran)
    outcome = Outcome(mutation, verdict, time.monotonic() - started)
    print(f"{outcome.seconds:6.1f} s  {mutation.name}: {outcome.verdict}", flush=True)
    if ran is not None and outcome.verdict != CAUGHT:
        print("\n".join(ran.said.splitlines()[-15:]), flush=True)
    return outcome


def table(outcomes: Sequence[Outcome]) -> str:
    """Return the table for documents."""
    rows = [
        f"| {each.mutation.name} | {each.mutation.guarantee} | {each.verdict} | "
        f"{'<br>'.join(f'`{test}`' for test in each.mutation.tests)} | {each.seconds:.0f} |"
        for each in outcomes
    ]
    head = ["| mutation | guarantee | verdict | by | seconds |", "|---|---|---|---|---:|"]
    return "\n".join([*head, *rows, ""])


def main() -> int:
    """Run what is asked for; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", metavar="NAME", action="append", help="this mutation")
    parser.add_argument("--sample", metavar="N", type=int, help="N of these, chosen at random")
    parser.add_argument("--list", action="store_true", help="show what there is, and run nothing")
    options = parser.parse_args()
    mutations = load()
    unknown = sorted({*(options.only or ())} - {*mutations})
    if unknown:
        parser.error(f"there is no mutation {', '.join(unknown)}")
    names = options.only or list(mutations)
    if options.sample is not None:
        names = sorted(random.sample(names, min(options.sample, len(names))))
    chosen = [mutations[name] for name in names]
    if options.list:
        for each in chosen:
            print(f"{each.name}: {GUARANTEES[each.guarantee]}")
        return 0
    for name in PRELOADED:
        importlib.import_module(name)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with tempfile.TemporaryDirectory(prefix="ddpjob-mutations-") as folder:
        copy = Copy(Path(folder))
        copy.check()
        whole = copy.test(sorted({test for each in chosen for test in each.tests}), limit=None)
        if whole.code != 0:
            print("\n".join(whole.said.splitlines()[-40:]))
            print("without any mutation these tests do not all pass")
        if whole.code != 0 and not whole.failed:
            return 1
        outcomes = [attempt(copy, each, whole.failed) for each in chosen]
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(table(outcomes))
    print(table(outcomes))
    missed = [each for each in outcomes if each.verdict != CAUGHT]
    print(f"{len(outcomes) - len(missed)} of {len(outcomes)} mutations are caught")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
