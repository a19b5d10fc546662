"""Groups that could not be formed leave nothing behind: whoever was in one can be in the next."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
from collections.abc import Iterator

import pytest
from torch import distributed

# Argument 1: the store's port, 2: the rank, 3: how many groups of two it enters alone before.
ENTERS = """
import sys, threading, torch
from torch import distributed
from ddpjob_trainer.group import Group

def break_off_when_connecting():
    while not over.wait(0.01):
        if group.connecting:
            group.break_off()

port, rank, alone = map(int, sys.argv[1:])
group = Group("gloo")
hook = sys.excepthook
for attempt in range(alone):
    over = threading.Event()
    thread = threading.Thread(target=break_off_when_connecting)
    thread.start()
    try:
        group.enter(group.meet(f"127.0.0.1:{port}", f"{rank}-{attempt}"), rank, 2)
    except RuntimeError as error:
        print("not formed:", str(error).splitlines()[0])
    else:
        raise SystemExit("a group of two was formed by one")
    finally:
        over.set()
        thread.join()
        group.leave()
for membership in ("first", "second"):
    group.enter(group.meet(f"127.0.0.1:{port}", membership), rank, 2)
    total = torch.tensor([rank + 1.0])
    distributed.all_reduce(total)
    print(membership, total.item())
    group.leave()
assert sys.excepthook is hook, "each group leaves a hook"
"""


@pytest.fixture
def port() -> Iterator[int]:
    """Of a store."""
    server = distributed.TCPStore(
        "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=dt.timedelta(seconds=60)
    )
    yield server.port
    del server


@pytest.mark.parametrize("alone", [1, 2])
def test_some_were_in_groups_that_were_not_formed(port: int, alone: int) -> None:
    """Others were not: a worker that joins, or who had connected to all when one was lost."""
    started = [
        subprocess.Popen(
            [sys.executable, "-c", ENTERS, str(port), str(rank), str(attempts)],
            stdout=subprocess.PIPE, text=True,
        )
        for rank, attempts in enumerate((alone, 0))
    ]  # fmt: skip
    try:
        printed = [process.communicate(timeout=120)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0, 0]
    assert printed[0].count("not formed:") == alone
    assert [text.splitlines()[-2:] for text in printed] == 2 * [["first 3.0", "second 3.0"]]
