"""Whoever comes and goes, training comes to the same; and what mistakes would do to it is seen.

`make bench-equivalence` is the same at length, beside stock torchrun.
"""

from __future__ import annotations

import asyncio

import pytest
from benchmarks.curves import Yardstick
from benchmarks.disturbed import UNDISTURBED, WHOLE, Lesson, Shape, draw, train
from benchmarks.equal import HARMS, harmed

DIGITS = Lesson("digits", seed=0, epochs=6)
EVENTS = ("kill", "process", "join", "process", "drain", "process", "join", "process")
CHANGES = 12  # a process that dies comes back
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


def test_a_dozen_changes_make_no_difference(undisturbed: Yardstick) -> None:
    run = asyncio.run(train(DIGITS, WHOLE, EVENTS))
    assert len(run.sections) > CHANGES
    assert len({section.world_size for section in run.sections}) > 1
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
    """With dropout and uneven shares."""
    alone = asyncio.run(train(GPT, Shape(1)))
    changed = asyncio.run(train(GPT, WHOLE, ("kill", "join", "drain")))
    assert len(changed.sections) > 3
    assert changed.digest == alone.digest


@pytest.mark.parametrize("seed", range(20))
def test_what_happens_leaves_one_worker_to_three(seed: int) -> None:
    workers = 3
    events = draw(seed, 10)
    assert events == draw(seed, 10)
    assert {"join", "kill", "drain", "process"} & {*events} > {"join"}
    for event in events:
        assert workers > 1 or event == "join"
        workers += {"join": 1, "process": 0}.get(event, -1)
        assert workers <= 3
