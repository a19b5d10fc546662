"""Work that two threads share: each piece once, and no thread continues before the last one."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from ddpjob_trainer.tensors.copy_jobs import CopyJob

PATIENCE = 120


def test_who_waits_does_what_is_left_and_waits_for_the_rest() -> None:
    begun, may_end = threading.Event(), threading.Event()
    done: list[tuple[int, int]] = []

    def held() -> None:
        begun.set()
        assert may_end.wait(PATIENCE)
        done.append((0, threading.get_ident()))

    def piece(number: int) -> None:
        done.append((number, threading.get_ident()))
        if number == 3:
            may_end.set()

    copying = CopyJob([held, *(lambda n=n: piece(n) for n in (1, 2, 3))])
    with ThreadPoolExecutor(1) as other:
        finished = other.submit(copying.finish)
        assert begun.wait(PATIENCE)
        copying.help()
        assert [number for number, _ in done] == [1, 2, 3, 0]
        assert {thread for number, thread in done if number > 0} == {threading.get_ident()}
        assert done[-1][1] != threading.get_ident()
        finished.result(PATIENCE)


def test_nothing_is_done_at_once() -> None:
    CopyJob().finish()


def test_an_error_of_the_helping_thread_is_raised_by_finish() -> None:
    done: list[int] = []

    def wrong() -> None:
        raise ValueError("of a helper")

    copying = CopyJob([wrong, lambda: done.append(1)])
    copying.help()
    assert done == [1]
    with pytest.raises(ValueError, match="of a helper"):
        copying.finish()


def test_who_needs_the_first_pieces_waits_for_no_other() -> None:
    begun, may_end = threading.Event(), threading.Event()
    done: list[int] = []

    def held() -> None:
        begun.set()
        assert may_end.wait(PATIENCE)

    copying = CopyJob([lambda: done.append(0), held, lambda: done.append(2)])
    with ThreadPoolExecutor(1) as other:
        finished = other.submit(copying.finish)
        assert begun.wait(PATIENCE)
        copying.reach(1)
        assert done == [0]
        reached = other_thread(copying, 2)
        while 2 not in done:  # it helps, as long as there is something to do
            assert reached.is_alive() or done == [0, 2]
        assert reached.is_alive(), "the second piece is not done"
        may_end.set()
        reached.join()
        finished.result(PATIENCE)


def other_thread(copying: CopyJob, count: int) -> threading.Thread:
    thread = threading.Thread(target=copying.reach, args=(count,))
    thread.start()
    return thread


def test_if_one_thread_is_slow_no_thread_continues_before_the_end() -> None:
    begun, may_end = threading.Event(), threading.Event()
    done: list[int] = []
    seen: list[int] = []

    def held() -> None:
        begun.set()
        assert may_end.wait(PATIENCE)
        done.append(1)

    copying = CopyJob([lambda: done.append(0), held])
    with ThreadPoolExecutor(2) as others:
        helps = others.submit(copying.help)
        assert begun.wait(PATIENCE)
        reached = others.submit(copying.reach, 1)
        reached.add_done_callback(lambda _: seen.extend(done))
        may_end.set()
        reached.result(PATIENCE)
        helps.result(PATIENCE)
    assert seen == [0, 1]


def test_a_thread_that_needs_the_first_pieces_gets_the_error() -> None:
    def wrong() -> None:
        raise ValueError("of a helper")

    copying = CopyJob([wrong, lambda: None])
    copying.help()
    for count in (1, 2):
        with pytest.raises(ValueError, match="of a helper"):
            copying.reach(count)
