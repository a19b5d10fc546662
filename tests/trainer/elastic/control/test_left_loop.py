"""A script leaves the loop by a break or a return, or by an error or an exit, which are no break."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator

import pytest

from ddpjob_trainer.elastic.control import left_loop

found: list[bool] = []


def steps() -> Iterator[int]:
    try:
        yield from range(9)
    except GeneratorExit:
        found.append(left_loop.is_break(sys._getframe(1)))
        raise


def shown(iterable: Iterable[int]) -> Iterator[int]:
    """A progress bar, for one."""
    for each in iterable:
        with contextlib.nullcontext():
            yield each


def breaks() -> None:
    for _ in steps():
        break


def breaks_within_with() -> None:
    for step in steps():
        with contextlib.nullcontext():
            if step == 2:
                break


def returns() -> int:
    for step in steps():
        if step == 3:
            return step
    return 0


def breaks_an_enumeration() -> None:
    for number, _ in enumerate(steps()):
        if number == 1:
            break


def breaks_a_progress_bar() -> None:
    for step in shown(steps()):
        if step == 1:
            break


def raises() -> None:
    for _ in steps():
        raise ValueError("my own mistake")


def raises_in_a_progress_bar() -> None:
    for step in shown(steps()):
        if step == 1:
            raise ValueError("my own mistake")


def raises_and_handles_it() -> None:
    with contextlib.suppress(ValueError):
        raises()


def exits() -> None:
    for step in steps():
        if step == 1:
            sys.exit(0)


@pytest.mark.parametrize(
    ("leave", "is_break"),
    [
        (breaks, True),
        (breaks_within_with, True),
        (returns, True),
        (breaks_an_enumeration, True),
        (breaks_a_progress_bar, True),
        (raises, False),
        (raises_in_a_progress_bar, False),
        (raises_and_handles_it, False),
        (exits, False),
    ],
)
def test_how_the_loop_was_left(leave: Callable[[], object], is_break: bool) -> None:
    found.clear()
    with contextlib.suppress(ValueError, ZeroDivisionError, SystemExit):
        leave()
    assert found[-1:] == [is_break]
