"""Two processes that share one GPU: groups over NCCL that break, and the next group."""

from __future__ import annotations

import datetime as dt
import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch import distributed

from gpu.two_members import CASES

SCRIPT = Path(__file__).with_name("two_members.py")
SECONDS = 300.0


def as_host(rank: int) -> dict[str, str]:
    """The environment of a process that NCCL takes for a host of its own."""
    root = Path(__file__).resolve().parents[2]
    paths = [root / "operator", root / "trainer-image", root / "tests"]
    own = {"NCCL_HOSTID": f"rank-{rank}", "NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo"}
    return {**os.environ, **own, "PYTHONPATH": os.pathsep.join(map(str, paths))}


@pytest.mark.parametrize("case", CASES)
def test_a_survivor_leaves_a_group_that_hangs_and_enters_the_next_one(case: str) -> None:
    wait = dt.timedelta(seconds=SECONDS)
    store = distributed.TCPStore(
        "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=wait
    )
    started = [
        subprocess.Popen(
            [sys.executable, SCRIPT, case, str(rank), str(store.port)],
            env=as_host(rank),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        printed = [process.communicate(timeout=SECONDS)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    assert printed[0].splitlines()[-1] == "done", printed[0]
    assert [process.returncode for process in started] == [0, 0], "\n---\n".join(printed)
