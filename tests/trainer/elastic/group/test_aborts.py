"""Groups that wait for each other are aborted together."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from ddpjob_trainer.elastic.group.aborts import Aborts


class Group:
    """A group whose abort returns once those of the others have begun."""

    def __init__(self, others: threading.Barrier) -> None:
        self._others = others
        self.aborted = 0

    def abort(self) -> None:
        self._others.wait(timeout=60)
        self.aborted += 1


def test_groups_whose_aborts_wait_for_each_other_are_aborted() -> None:
    barrier, aborts = threading.Barrier(2), Aborts()
    groups = [Group(barrier), Group(barrier)]
    for times in (1, 2):
        aborts.start(groups)
        assert aborts.wait(120)
        assert [group.aborted for group in groups] == [times, times]


def test_an_abort_that_hangs_is_left_behind_and_not_repeated() -> None:
    barrier, aborts = threading.Barrier(2), Aborts()
    hangs = Group(barrier)
    for is_first in (True, False):
        assert aborts.start([hangs]) is is_first, "the second call has none to wait for"
        assert not aborts.wait(0)
    aborts.start([other := Group(barrier)])
    assert aborts.wait(120)
    assert (hangs.aborted, other.aborted) == (1, 1)


def test_a_backend_without_an_abort_is_no_error() -> None:
    class Without:
        def abort(self) -> None:
            raise RuntimeError("no abort")

    aborts = Aborts()
    with pytest.MonkeyPatch.context() as patch:
        seen: list[object] = []
        patch.setattr(threading, "excepthook", seen.append)
        aborts.start([Without()])
        assert aborts.wait(120)
    assert not seen


ENDS_WHILE_A_THREAD_ABORTS = """
import atexit, threading, time
from ddpjob_trainer.elastic.group.aborts import ExitGate

def abort(name, begins):
    begins.wait()
    with gate.pass_through():
        inside.set()
        time.sleep(0.5)
        print(name, flush=True)

gate, inside, ends, at_once = ExitGate(), *(threading.Event() for _ in range(3))
for name, begins in (("begun before the end", at_once), ("begun at the end", ends)):
    threading.Thread(target=abort, args=[name, begins], daemon=True).start()
at_once.set()
inside.wait()
atexit._run_exitfuncs()
ends.set()
time.sleep(1)
"""


def test_a_process_ends_while_no_thread_aborts_a_group() -> None:
    """Python would stop the thread in torch's code, and so the process would end by SIGABRT."""
    command = [sys.executable, "-c", ENDS_WHILE_A_THREAD_ABORTS]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ended.stdout == "begun before the end\n"
