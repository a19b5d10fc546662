"""The copy, of many, that all ranks resume from."""

from __future__ import annotations

import pytest

from ddpjob_trainer.snapshots.model.fencing import Fence, Owner
from ddpjob_trainer.snapshots.model.selection import (
    Candidate,
    Selection,
    StorageContents,
    select_snapshot,
)

ME = Owner("job", "1.1.9")


def by(membership: str, job: str = "job") -> Owner:
    return Owner(job, membership)


def offer(step: int, membership: str = "1.1.1", digest: str = "") -> Candidate:
    return Candidate(step, digest or f"{step}", by(membership))


def holding(
    rank: int, *offers: Candidate, fences: tuple[Fence, ...] = (), size: int = 1
) -> StorageContents:
    return StorageContents(tuple(range(rank, rank + size)), offers, fences)


def test_the_newest_wins_wherever_it_lies() -> None:
    found = select_snapshot(
        [holding(0, offer(10)), holding(1, offer(30), offer(20), size=2), holding(3, offer(30))],
        self_owner=ME,
    )
    assert found == Selection(30, "30", frozenset({1, 2, 3}), by("1.1.1"))
    assert select_snapshot([holding(0), holding(1)], self_owner=ME) is None


def test_what_is_unusable_somewhere_is_taken_from_elsewhere() -> None:
    holdings = [holding(0, offer(30), offer(20)), holding(1, offer(30)), holding(2, offer(20))]
    found = select_snapshot(holdings, self_owner=ME, excluded={(1, "30")})
    assert found == Selection(30, "30", frozenset({0}), by("1.1.1"))
    found = select_snapshot(holdings, self_owner=ME, excluded={(0, "30"), (1, "30")})
    assert found == Selection(20, "20", frozenset({0, 2}), by("1.1.1"))


def test_of_two_of_the_same_step_that_of_the_later_membership() -> None:
    found = select_snapshot(
        [holding(0, offer(30, "1.1.1", "b")), holding(1, offer(30, "1.1.2", "a"))], self_owner=ME
    )
    assert found == Selection(30, "a", frozenset({1}), by("1.1.2"))


@pytest.mark.parametrize(
    ("fence", "step"),
    [
        pytest.param(Fence(1, by("1.1.2"), 20), 20, id="a later membership resumed before it"),
        pytest.param(Fence(1, by("1.1.2"), 30), 30, id="from it"),
        pytest.param(Fence(1, by("1.1.2"), 40), 30, id="or from a later one, which is lost"),
        pytest.param(Fence(1, by("1.1.0"), 20), 30, id="an earlier membership"),
        pytest.param(Fence(1, by("2.1.3", job="other"), 20), 30, id="another job"),
        pytest.param(Fence(1, ME, 20), 30, id="this one, which chooses still"),
    ],
)
def test_a_fenced_snapshot_does_not_count_in_any_directory(fence: Fence, step: int) -> None:
    overtaken = holding(0, offer(30, "1.1.1"), offer(20, "1.1.1"))
    found = select_snapshot(
        [overtaken, holding(1, offer(20, "1.1.1"), fences=(fence,))], self_owner=ME
    )
    assert found is not None
    assert found.step == step


def test_of_a_membership_that_resumed_twice_the_second_time_counts() -> None:
    fences = (Fence(1, by("1.1.2"), 10), Fence(2, by("1.1.2"), 30))
    found = select_snapshot([holding(0, offer(30, "1.1.1"), fences=fences)], self_owner=ME)
    assert found is not None
    assert found.step == 30


def test_a_process_of_no_job_counts_beside_a_job() -> None:
    alone = Candidate(40, "40", Owner("", "1a2b"))
    fence = Fence(1, by("1.1.2"), 20)
    found = select_snapshot(
        [holding(0, offer(30), fences=(fence,)), holding(1, alone)], self_owner=ME
    )
    assert found == Selection(40, "40", frozenset({1}), alone.writer)
