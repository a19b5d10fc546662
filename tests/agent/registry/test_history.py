"""The history of the processes' reports."""

from __future__ import annotations

from ddpjob_agent.registry.history import MembershipHistory


def saved(step: int, **more: object) -> dict[str, object]:
    return {"event": "saved", "step": step, **more}


def test_a_snapshot_in_a_shared_directory_is_safe_at_once() -> None:
    history = MembershipHistory()
    history.on_progress(saved(10), 0.0)
    assert history.snapshot_step == 10
    history.on_progress(saved(20, storage=0, storages=1), 0.0)
    assert history.snapshot_step == 20


def test_snapshots_that_were_left_out_are_counted_from_one_to_the_next() -> None:
    history, counts = MembershipHistory(), []
    for step, skipped in ((10, 0), (40, 2), (50, 0)):
        history.on_progress(saved(step, **({"skipped": skipped} if skipped else {})), 0.0)
        counts.append(history.snapshots_skipped)
    assert counts == [0, 2, 0]


def test_a_snapshot_in_a_directory_of_each_worker_is_safe_once_it_lies_in_two() -> None:
    history = MembershipHistory()
    for _ in range(2):
        history.on_progress(saved(10, storage=0, storages=3), 0.0)
        assert history.snapshot_step is None
    history.on_progress(saved(10, storage=4, storages=3), 0.0)
    assert history.snapshot_step == 10
    history.on_progress(saved(20, storage=4, storages=3), 0.0)
    history.on_progress(saved(10, storage=2, storages=3), 0.0)
    history.on_progress(saved(30, storage=0, storages=3), 0.0)
    assert history.snapshot_step == 10
    history.on_progress(saved(30, storage=2, storages=3), 0.0)
    assert history.snapshot_step == 30
