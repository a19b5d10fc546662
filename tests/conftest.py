"""What holds for every test: tiers are counted, and no process outlives the session.

`--tier=NAME` (given by the Makefile) makes a run strict: it fails when a test is skipped,
deselected or expected to fail, and when fewer pass than tests/tiers.toml demands. It leaves
a report in build/tiers: counts, failures, leaked processes, seconds and CPU seconds of each test. Without it,
`pytest -k something` is free to select.

Processes are recognised by an environment variable that pytest hands down, because one that
lost its parent is no longer pytest's descendant.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
import tomllib
import uuid
from collections import Counter, defaultdict
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path

import hypothesis
import psutil
import pytest

# Where this is set, as in many images, each of a tier's processes would compile our modules again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

pytest.register_assert_rewrite("support")  # before anything imports it

from support.forked import forks  # noqa: E402
from support.forking import fork_server, job_forks  # noqa: E402

__all__ = ["fork_server", "forks", "job_forks"]  # for the tests of several folders

ROOT = Path(__file__).resolve().parent.parent
TIERS = ROOT / "tests" / "tiers.toml"
SOAK = "soak-"  # parts of `make soak`, with minimum 1
REPORTS = ROOT / "build" / "tiers"

ENV_SESSION = "DDPJOB_TEST_SESSION"
ENV_JOB_UID = "DDPJOB_JOB_UID"
MOST_LINES = 8  # of one failure, told again at the end of all tiers
GRACE_SECONDS = 30.0  # for processes that are ending just now, on a busy machine
# multiprocessing's own helpers live exactly as long as pytest does
HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")

# Of the reports of one test the gravest counts.
GRAVITY = ("passed", "xfailed", "skipped", "failed")


# A shell starts a background command with SIGINT ignored, and its processes inherit that. Tests
# that press Ctrl-C need the default.
signal.signal(signal.SIGINT, signal.default_int_handler)
PYTEST = os.getpid()


def end_once(number: int, _frame: object) -> None:
    """End the session with its cleanup on the first SIGTERM; ignore the others."""
    if os.getpid() != PYTEST:  # a forked process
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        return
    signal.signal(number, lambda *_: None)
    raise KeyboardInterrupt


signal.signal(signal.SIGTERM, end_once)

# How long an example takes says nothing about it on a machine that does something else as well.
hypothesis.settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any machine")


@pytest.fixture(autouse=True)
def keep_recursion_limit() -> Iterator[None]:
    """Undo what a client of Kubernetes changes for its process: other tests need the usual limit."""
    limit = sys.getrecursionlimit()
    yield
    sys.setrecursionlimit(limit)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tier", metavar="NAME", help="count strictly, as a tier of tests/tiers.toml")


def pytest_configure(config: pytest.Config) -> None:
    session = uuid.uuid4().hex
    os.environ[ENV_SESSION] = session
    leaks = Leaks(session)
    tier = config.getoption("--tier")
    if tier is not None:
        tiers = tomllib.loads(TIERS.read_text())
        if tier not in tiers and not tier.startswith(SOAK):
            raise pytest.UsageError(f"--tier: {tier!r} is not in {TIERS.relative_to(ROOT)}")
        counted = Tier(tier, tiers.get(tier, {}).get("minimum", 1), leaks)
        config.pluginmanager.register(counted, "ddpjob-tier")
    # what is registered last ends first: the tier's report tells of what leaked
    config.pluginmanager.register(leaks, "ddpjob-leaks")


class Tier:
    """Counts what became of every test, and decides whether that is enough."""

    def __init__(self, name: str, minimum: int, leaks: Leaks) -> None:
        self.name = name
        self.minimum = minimum
        self.leaks = leaks
        self.collected = 0
        self.subtests: set[str] = set()  # each counts as a test
        self.deselected = 0
        self.broken_modules = 0
        self.skipped_modules = 0
        self.outcomes: dict[str, str] = {}
        self.failures: dict[str, list[str]] = {}  # the end of pytest's own words
        self.seconds: defaultdict[str, float] = defaultdict(float)  # set-up and tear-down included
        self.cpu_seconds: dict[str, float] = {}  # of processes, too, for the test in which they end

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.skipped_modules += report.skipped
        self.broken_modules += report.failed
        self.note(report)

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        self.deselected += len(items)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.collected = len(session.items) + self.deselected

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        before = cpu_seconds()
        result = yield
        self.cpu_seconds[item.nodeid] = cpu_seconds() - before
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if isinstance(report, pytest.SubtestReport):  # its time is a part of its test's
            self.subtests.add(name_of(report))
        else:
            self.seconds[report.nodeid] += report.duration
        outcome = "xfailed" if report.skipped and hasattr(report, "wasxfail") else report.outcome
        if outcome == "passed" and report.when != "call":
            return
        before = self.outcomes.get(name_of(report), GRAVITY[0])
        self.outcomes[name_of(report)] = max(before, outcome, key=GRAVITY.index)
        self.note(report)

    def note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.failed:
            self.failures[name_of(report)] = report.longreprtext.splitlines()[-MOST_LINES:]

    def counts(self) -> dict[str, int]:
        outcomes = Counter(self.outcomes.values())
        return {
            "collected": self.collected + len(self.subtests),
            "passed": outcomes["passed"],
            "failed": outcomes["failed"] + self.broken_modules,
            "skipped": outcomes["skipped"] + self.skipped_modules,
            "xfailed": outcomes["xfailed"],
            "deselected": self.deselected,
            "minimum": self.minimum,
        }

    def complaints(self) -> list[str]:
        counts = self.counts()
        found = [f"{counts[k]} {k}" for k in ("skipped", "xfailed", "deselected") if counts[k]]
        if counts["passed"] < self.minimum:
            found.append(f"{counts['passed']} passed, fewer than the minimum of {self.minimum}")
        return found

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.complaints():
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        REPORTS.mkdir(parents=True, exist_ok=True)
        told = {
            "counts": self.counts(),
            "failures": self.failures,
            "leaked": self.leaks.leaked,
            "seconds": {test: round(seconds, 3) for test, seconds in self.seconds.items()},
            "cpu_seconds": {test: round(used, 3) for test, used in self.cpu_seconds.items()},
        }
        (REPORTS / f"{self.name}.json").write_text(json.dumps(told) + "\n")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        counts = self.counts()
        terminalreporter.write_line(
            f"tier {self.name}: collected {counts['collected']}, passed {counts['passed']}, "
            f"failed {counts['failed']}, skipped {counts['skipped'] + counts['xfailed']}, "
            f"deselected {counts['deselected']} (minimum {self.minimum})"
        )
        for complaint in self.complaints():
            terminalreporter.write_line(f"tier {self.name} FAILS: {complaint}", red=True)


def cpu_seconds() -> float:
    """Return what this process, its living children, and the processes that they reaped have used.

    A fork server lives as long as the session, and reaps the programs of the tests.
    """
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    reaped = sum(each.ru_utime + each.ru_stime for each in used)
    return reaped + sum(map(ticks_of, children())) / os.sysconf("SC_CLK_TCK")


def children() -> list[str]:
    """Return the living children of this process; none where the kernel does not list them."""
    try:
        return Path("/proc/thread-self/children").read_text().split()
    except OSError:
        return []


def ticks_of(pid: str) -> int:
    """Return the ticks of a process and of what it reaped."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:  # it has just ended
        return 0
    return sum(map(int, fields[11:15]))  # utime to cstime of proc(5)


def name_of(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Name a test, or a subtest of one."""
    if not isinstance(report, pytest.SubtestReport):
        return report.nodeid
    keywords = ", ".join(f"{key}={value}" for key, value in report.context.kwargs.items())
    return f"{report.nodeid} [{', '.join(filter(None, (report.context.msg, keywords)))}]"


class Leaks:
    """Ends what tests left running, and fails the session for it."""

    def __init__(self, session: str) -> None:
        self.session = session
        self.leaked: list[str] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        left = self.wait_for_none()
        for process in left:
            self.leaked.append(describe(process))
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        if left:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def wait_for_none(self) -> list[psutil.Process]:
        deadline = time.monotonic() + GRACE_SECONDS
        while left := self.find():
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)
        return left

    def find(self) -> list[psutil.Process]:
        descendants = {child.pid for child in psutil.Process().children(recursive=True)}
        return [p for p in psutil.process_iter() if self.is_ours(p, p.pid in descendants)]

    def is_ours(self, process: psutil.Process, descends: bool) -> bool:
        if process.pid == os.getpid():
            return False
        try:
            environment = process.environ()
            if process.status() == psutil.STATUS_ZOMBIE:
                return False
            if any(helper in word for word in process.cmdline() for helper in HELPERS):
                return False
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            return False
        return environment.get(ENV_SESSION) == self.session or (
            descends and ENV_JOB_UID in environment
        )

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for line in self.leaked:
            terminalreporter.write_line(f"LEAKED by the tests, killed now: {line}", red=True)


def describe(process: psutil.Process) -> str:
    try:
        command = " ".join(process.cmdline())[:200]
        uid = process.environ().get(ENV_JOB_UID)
    except psutil.Error:
        return f"pid {process.pid}"
    return f"pid {process.pid}" + (f" of job {uid}" if uid else "") + f": {command}"
