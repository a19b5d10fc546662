"""The history of the processes' reports."""

from __future__ import annotations

from ddpjob_agent.registry.state.history import MembershipHistory
from ddpjob_protocol.messages.process import ProgressEvent
from ddpjob_protocol.parsers.progress import ProgressReport


def saved(step: int, **more: object) -> ProgressReport:
    return ProgressReport.parse({"event": "saved", "step": step, **more})


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


def step(history: MembershipHistory, number: int, wall: float) -> float | None:
    history.on_progress(ProgressReport(ProgressEvent.STEP, number), wall)
    return history.steps_per_second


def test_the_rate_is_that_of_the_last_minute() -> None:
    history = MembershipHistory()
    rates = [step(history, n * 10, n * 1.0) for n in range(100)]
    assert rates[0] is None
    assert set(rates[1:]) == {10.0}
    slow = [step(history, 990 + n, 99.0 + n) or 0.0 for n in range(1, 100)]
    assert slow[-1] == 1.0
    assert slow == sorted(slow, reverse=True), "it falls smoothly"


def test_the_rate_starts_again_when_steps_are_repeated() -> None:
    history = MembershipHistory()
    assert step(history, 10, 0.0) is None
    assert step(history, 20, 2.0) == 5.0
    assert step(history, 15, 3.0) is None
    assert step(history, 16, 4.0) == 1.0
