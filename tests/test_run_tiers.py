"""`make test`, interrupted: its targets clean up, no further one begins, and nothing is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
def test_an_interrupted_run_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    make = tmp_path / "make"
    make.write_text(TARGET.format(python=sys.executable, folder=tmp_path))
    make.chmod(0o755)
    targets = ["interrupted-clean", "interrupted-stubborn", "interrupted-third"]
    with subprocess.Popen(
        [sys.executable, "-m", "tools.run_tiers", *targets],
        cwd=ROOT,
        env={**os.environ, "MAKE": str(make), "DDPJOB_AT_ONCE": "2"},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            until_begun(tmp_path, 2)
            below = psutil.Process(process.pid).children(recursive=True)
            process.send_signal(number)
            output, _ = process.communicate(timeout=PATIENCE_SECONDS)
        finally:
            process.kill()
    assert process.returncode == 130, output
    assert output.endswith("interrupted: nothing is left running\n")
    names = {path.name for path in tmp_path.iterdir() if path != make}
    assert names == {f"{each}.{what}" for each in targets[:2] for what in ("begun", "cleaned")}
    psutil.wait_procs(below, timeout=PATIENCE_SECONDS)
    assert [each for each in below if each.is_running()] == []


def until_begun(folder: Path, count: int) -> None:
    """Wait until this number of targets runs."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(list(folder.glob("*.begun"))) < count:
        assert time.monotonic() < deadline, "the targets never begin"
        time.sleep(0.02)
