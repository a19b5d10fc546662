"""The order of the targets of `make test`, and what an interruption leaves: nothing."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[1]
PATIENCE_SECONDS = 120.0

# Takes the place of make: a target that pytest runs, with a process such as an API server.
TARGET = """#!{python}
import pathlib, signal, subprocess, sys, time
def end(*_):
    raise KeyboardInterrupt
signal.signal(signal.SIGTERM, end)
target = sys.argv[-1]
child = subprocess.Popen(["sleep", "600"])
try:
    pathlib.Path("{folder}", target + ".begun").touch()
    time.sleep(600)
finally:
    if target != "interrupted-stubborn":
        child.kill()
    pathlib.Path("{folder}", target + ".cleaned").touch()
"""

# Takes the place of make: a build that lasts until two targets have run, which fail if they meet.
BUILD = """#!{python}
import pathlib, sys, time
folder, target = pathlib.Path("{folder}"), sys.argv[-1]
def wait(seconds, *names):
    deadline = time.monotonic() + seconds
    while not (found := all((folder / name).exists() for name in names)):
        if time.monotonic() > deadline:
            break
        time.sleep(0.02)
    return found
if target == "kind-build":
    sys.exit(not wait({patience}, "a.ended", "b.ended"))
if target != "soak-e2e":
    other = "b" if target == "a" else "a"
    (folder / target).touch()
    met = wait(0.5, other)
    (folder / target).rename(folder / (target + ".ended"))
    sys.exit(met)
"""


def test_beside_a_build_one_target_runs_at_a_time(tmp_path: Path) -> None:
    with running(BUILD, tmp_path, ["soak-e2e", "a", "b"]) as process:
        output, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, output


@contextlib.contextmanager
def running(make: str, folder: Path, targets: list[str]) -> Iterator[subprocess.Popen[str]]:
    path = folder / "make"
    path.write_text(make.format(python=sys.executable, folder=folder, patience=PATIENCE_SECONDS))
    path.chmod(0o755)
    with subprocess.Popen(
        [sys.executable, "-m", "tools.run_tiers", *targets],
        cwd=ROOT,
        env={**os.environ, "MAKE": str(path), "DDPJOB_AT_ONCE": "2"},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
def test_an_interrupted_run_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    targets = ["interrupted-clean", "interrupted-stubborn", "interrupted-third"]
    with running(TARGET, tmp_path, targets) as process:
        until_begun(tmp_path, 2)
        below = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(number)
        output, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 130, output
    assert output.endswith("interrupted: nothing is left running\n")
    names = {path.name for path in tmp_path.iterdir() if path.name != "make"}
    assert names == {f"{each}.{what}" for each in targets[:2] for what in ("begun", "cleaned")}
    psutil.wait_procs(below, timeout=PATIENCE_SECONDS)
    assert [each for each in below if each.is_running()] == []


def until_begun(folder: Path, count: int) -> None:
    """Wait until this number of targets runs."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(list(folder.glob("*.begun"))) < count:
        assert time.monotonic() < deadline, "the targets never begin"
        time.sleep(0.02)
