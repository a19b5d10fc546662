"""What the history keeps of what processes report."""

from __future__ import annotations

from ddpjob_agent.service.history import Rounds
from ddpjob_protocol.membership import Cause, Membership, MembershipId


def saved(step: int, **more: object) -> dict[str, object]:
    return {"event": "saved", "step": step, **more}


def test_a_snapshot_in_a_shared_directory_is_safe_at_once() -> None:
    rounds = Rounds()
    rounds.hear(saved(10), 0.0)
    assert rounds.snapshot_step == 10
    rounds.hear(saved(20, place=0, places=1), 0.0)
    assert rounds.snapshot_step == 20


def test_snapshots_that_were_left_out_are_counted_from_one_to_the_next() -> None:
    rounds, counts = Rounds(), []
    for step, skipped in ((10, 0), (40, 2), (50, 0)):
        rounds.hear(saved(step, **({"skipped": skipped} if skipped else {})), 0.0)
        counts.append(rounds.snapshots_skipped)
    assert counts == [0, 2, 0]


def test_a_snapshot_in_a_directory_of_each_worker_is_safe_once_it_lies_in_two() -> None:
    rounds = Rounds()
    for _ in range(2):
        rounds.hear(saved(10, place=0, places=3), 0.0)
        assert rounds.snapshot_step is None
    rounds.hear(saved(10, place=4, places=3), 0.0)
    assert rounds.snapshot_step == 10
    rounds.hear(saved(20, place=4, places=3), 0.0)
    rounds.hear(saved(10, place=2, places=3), 0.0)
    rounds.hear(saved(30, place=0, places=3), 0.0)
    assert rounds.snapshot_step == 10
    rounds.hear(saved(30, place=2, places=3), 0.0)
    assert rounds.snapshot_step == 30


def test_what_makes_saving_worse_is_known_until_a_save_without_it() -> None:
    rounds = Rounds()
    rounds.hear(saved(10, place=0, places=2), 0.0)
    rounds.hear(saved(10, place=1, places=2, trouble="short"), 0.0)
    rounds.hear(saved(20, place=0, places=2), 0.0)
    assert rounds.snapshot_trouble == "short", "the other directory's"
    rounds.begin(Membership(MembershipId(1, 1, 2), (), Cause.LOST, ""), 0.0)
    assert rounds.snapshot_trouble == "short", "nothing was saved since"
    rounds.hear(saved(30), 0.0)
    assert rounds.snapshot_trouble == ""


def test_who_was_stuck_is_told_with_what_is_left_of_its_state() -> None:
    rounds = Rounds()
    rounds.hang("digits-worker-000-1", "1.1.7", 41)
    rounds.hang("digits-worker-001-1", "1.1.8", None)
    left, lost = rounds.stuck()
    assert left.startswith("digits-worker-000-1: a process did not come out of a collective")
    assert "membership 1.1.7" in left
    assert left.endswith("another one goes on with its state, of step 41")
    assert lost.endswith("It was ended, and its state is lost")
