"""The judgement of a run: what is different is seen."""

from __future__ import annotations

import pytest

from trainer.habits.memberships import MOST, draw
from trainer.habits.runs import Ended, Row, Run, verdict

DONE = Ended(0, is_victim=False, output="")
FAILED = Ended(1, is_victim=False, output="Traceback …\n  x\nRuntimeError: no\nWrite y.\n")
KILLED = Ended(-9, is_victim=True, output="")


def row(step: int, n: int = 1, rank: int = 0, norm: float = 1.0, digest: str = "a") -> Row:
    return Row(step, f"1.1.{n}", rank, 2, float(step), 6, norm, digest)


REFERENCE = Run([row(1), row(2)], [DONE])


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (REFERENCE, "same"),
        (Run([row(1), row(2, 1, norm=9.0), row(2, 2)], [DONE, KILLED]), "same"),
        (Run([row(1), row(2, 2), row(2, 1, norm=9.0)], [DONE, KILLED]), "same"),
        (Run([row(1), row(2, norm=1.001)], [DONE]), "DIFFERENT: parameters after step 2"),
        (Run([row(1), row(1, rank=1, digest="b"), row(2)], [DONE]), "DIFFERENT: replicas"),
        (Run([row(1)], [DONE]), "DIFFERENT: 1 steps"),
        (Run([], [FAILED]), "refused: RuntimeError: no"),
        (Run([row(1), row(2)], [FAILED]), "fails after step 2: RuntimeError: no"),
        (Run([row(1), row(2)], [DONE, Ended(-6, is_victim=False, output="")]), "fails after step 2"),
    ],
)  # fmt: skip
def test_verdict(run: Run, expected: str) -> None:
    assert verdict(run, REFERENCE).startswith(expected)


def test_a_loss_that_is_not_a_number_is_different() -> None:
    run = Run([row(1), row(2)._replace(loss=float("nan"))], [DONE])
    assert verdict(run, REFERENCE).startswith("DIFFERENT: loss after step 2")


@pytest.mark.parametrize("seed", range(20))
def test_changes_leave_one_process_to_three(seed: int) -> None:
    processes = 2
    changes = draw(seed, 10, processes)
    assert changes == draw(seed, 10, processes)
    for change in changes:
        processes += {"join": 1, "cut": 0}.get(change.kind, -1)
        assert 1 <= processes <= MOST
