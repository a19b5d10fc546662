"""Whoever comes and goes, training comes to the same; and what mistakes would do to it is seen.

`make bench-equivalence` is the same at length, beside stock torchrun. DDPJOB_EQUIVALENCE=all trains
longer, with more changes and every mistake, and a GPT in deterministic mode: `test_deterministic.py`
is the short form of that.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from support.equivalence.curves import Yardstick, read
from support.equivalence.disturbed import UNDISTURBED, WHOLE, Lesson, Shape, draw, train
from support.equivalence.equal import HARMS, harmed

ALL = os.environ.get("DDPJOB_EQUIVALENCE") == "all"
DIGITS = Lesson("digits", seed=0, epochs=6 if ALL else 3)
SHAPES = UNDISTURBED if ALL else (Shape(1), Shape(2), WHOLE)
MISTAKES = HARMS if ALL else ["drop"]  # the smallest one
# A process that dies comes back, so these are more changes than events: so quickly, at times, that
# nothing is done without it. What is sure is a step between one event and the next.
EVENTS = ("kill", "process", "join", "process", "drain", *(["process", "join", "process"] * ALL))
GPT = Lesson("gpt", seed=0, epochs=2, shards=8)


@pytest.fixture(scope="module")
def undisturbed() -> Yardstick:
    """Of one, two and three workers."""
    return Yardstick([asyncio.run(train(DIGITS, shape)) for shape in SHAPES])


def test_undisturbed_runs_agree(undisturbed: Yardstick) -> None:
    """But for the order of sums: what is trained on does not depend on how many train."""
    assert 0 < undisturbed.tolerance.curve < 1e-6
    assert 0 < undisturbed.tolerance.final < 1e-5
    assert all(run.curve[-1] < run.curve[0] for run in undisturbed.undisturbed)


def test_changes_make_no_difference(undisturbed: Yardstick) -> None:
    run = asyncio.run(train(DIGITS, WHOLE, EVENTS))
    assert len(run.sections) > len(EVENTS)
    assert len({section.world_size for section in run.sections}) > 1
    difference = undisturbed.measure(run)
    assert difference.curve <= 1
    assert difference.final <= 1


@pytest.mark.parametrize("harm", MISTAKES)
def test_a_mistake_is_seen(undisturbed: Yardstick, harm: str) -> None:
    """By far: it could not hide in the tolerance."""
    difference = undisturbed.measure(asyncio.run(harmed(DIGITS, harm, at=10 * DIGITS.epochs)))
    assert difference.curve > 100
    assert difference.final > 100


if ALL:

    def test_deterministic_mode_makes_the_same_bits_of_a_gpt() -> None:
        """With dropout and uneven shares."""
        alone = asyncio.run(train(GPT, Shape(1)))
        events = ("kill", "process", "drain")
        changed = asyncio.run(train(GPT, WHOLE, events))
        assert len(changed.sections) > len(events)
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


def write(folder: Path, *rows: tuple[str, int, int, int, dict[int, float]]) -> None:
    """Rows of losses, each by a process of its own, and one final state."""
    for number, row in enumerate(rows):
        (folder / f"{number}.losses").write_text(json.dumps(row) + "\n")
    final = {"parameters": [0.5], "loss": 1.0, "accuracy": 0.5}
    (folder / "0.final").write_text(json.dumps(final))


def test_of_a_step_begun_twice_the_second_time_counts(tmp_path: Path) -> None:
    write(
        tmp_path,
        ("1.1.9", 0, 0, 2, {0: 1.0}), ("1.1.9", 0, 1, 2, {1: 2.0}),
        ("1.1.9", 1, 0, 2, {2: 9.0}), ("1.1.10", 1, 0, 1, {2: 3.0, 3: 4.0}),
    )  # fmt: skip
    (tmp_path / "dead.losses").write_text('["1.1.11", 1, 0, 1, {"2": 7')
    run = read(tmp_path)
    assert run.curve == (1.5, 3.5)
    assert run.sections == ((0, 2), (1, 1))


def test_a_missing_part_is_no_curve(tmp_path: Path) -> None:
    write(tmp_path, ("1.1.1", 0, 0, 2, {0: 1.0}))
    with pytest.raises(ValueError, match="not all ranks report step 0"):
        read(tmp_path)


def test_a_missing_step_is_no_curve(tmp_path: Path) -> None:
    write(tmp_path, ("1.1.1", 1, 0, 1, {0: 1.0}))
    with pytest.raises(ValueError, match="steps are missing"):
        read(tmp_path)
