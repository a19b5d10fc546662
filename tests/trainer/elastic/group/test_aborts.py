"""Groups that wait for each other are aborted together."""

from __future__ import annotations

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
