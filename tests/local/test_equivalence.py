"""Whoever comes and goes, training comes to the same; and what mistakes would do to it is seen.

`make bench-equivalence` is the same at length, beside stock torchrun.
"""

from __future__ import annotations

import asyncio

import pytest
from benchmarks.curves import Trained, Yardstick
from benchmarks.disturbed import UNDISTURBED, WHOLE, Lesson, Shape, draw, train
from benchmarks.equal import HARMS, harmed

DIGITS = Lesson("digits", seed=0, epochs=6)
GPT = Lesson("gpt", seed=0, epochs=1, shards=8)
pytestmark = pytest.mark.timeout(900)  # a loaded machine takes its time to start processes


@pytest.fixture(scope="module")
def undisturbed() -> Yardstick:
    """Of one, two and three workers."""
    return Yardstick([asyncio.run(train(DIGITS, shape)) for shape in UNDISTURBED])


def test_undisturbed_runs_agree(undisturbed: Yardstick) -> None:
    """But for the order of sums: what is trained on does not depend on how many train."""
    assert 0 < undisturbed.tolerance.curve < 1e-6
    assert 0 < undisturbed.tolerance.final < 1e-5
    assert all(run.curve[-1] < run.curve[0] for run in undisturbed.undisturbed)


def test_ten_changes_make_no_difference(undisturbed: Yardstick) -> None:
    events = draw(seed=0, count=10)
    run = asyncio.run(train(DIGITS, WHOLE, events))
    assert len(run.sections) > len(events)
    assert {section.world_size for section in run.sections} >= {3, 4}
    assert {"join", "kill", "drain"} <= {*events}
    difference = undisturbed.measure(run)
    assert difference.curve <= 1
    assert difference.final <= 1


@pytest.mark.parametrize("harm", HARMS)
def test_a_mistake_is_seen(undisturbed: Yardstick, harm: str) -> None:
    """By far: it could not hide in the tolerance."""
    difference = undisturbed.measure(asyncio.run(harmed(DIGITS, harm, at=60)))
    assert difference.curve > 100
    assert difference.final > 100


def test_deterministic_mode_makes_the_same_bits_of_a_gpt() -> None:
    """With dropout, on uneven shares, with changes in between; others for another seed."""

    def digest(lesson: Lesson, shape: Shape, events: tuple[str, ...] = ()) -> str:
        run: Trained = asyncio.run(train(lesson, shape, events))
        assert len(run.sections) == len(events) + 1
        return run.digest

    alone = digest(GPT, Shape(1))
    assert digest(GPT, WHOLE, ("kill", "join", "drain")) == alone
    assert digest(GPT._replace(seed=1), Shape(1)) != alone
