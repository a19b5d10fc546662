"""Ranks that never call `Snapshots.due` are named once; slow ranks are not."""

from __future__ import annotations

import pytest

from agent.membership.views import NOW, hello
from ddpjob_agent.membership.stop_askers import SECONDS, STEPS
from ddpjob_agent.registry.decisions import decide
from ddpjob_agent.registry.messages import on_message
from ddpjob_agent.registry.registration import on_expectation, on_hello
from ddpjob_agent.registry.report import build_report
from ddpjob_agent.registry.state.registry_state import initial_state
from ddpjob_protocol.messages.control import Expectation, Policy
from ddpjob_protocol.messages.membership import Member


class Job:
    """Two workers with two processes each, which train together."""

    def __init__(self) -> None:
        self.state = initial_state(term=1, boot=1, wall_offset=0.0)
        on_expectation(self.state, Expectation(("a", "b"), policy=Policy(minimum=1)), NOW)
        for name in "ab":
            on_hello(self.state, hello(Member(name, f"{name}-first", "127.0.0.1", 2)), NOW)
        decide(self.state, NOW)

    def asks(self, rank: int | None, later: float = 0.0) -> None:
        message = {"type": "asks", "membership": "1.1.1", "rank": rank}
        on_message(self.state, "ab"[(rank or 0) // 2], message, NOW + later)

    def steps(self, count: int, later: float) -> None:
        for step in range(1, count + 1):
            report = {"event": "step", "step": step}
            message = {"type": "report", "membership": "1.1.1", "report": report}
            on_message(self.state, "a", message, NOW + later)

    @property
    def told(self) -> list[str]:
        return [w.message for w in build_report(self.state, 1).warnings]


@pytest.mark.parametrize(
    ("asking", "words"),
    [
        ((0,), "ranks 1, 2, 3 never call snapshots.due(step), and other ranks do."),
        ((0, 1, 3), "rank 2 never calls snapshots.due(step), and other ranks do."),
    ],
)
def test_silent_ranks_are_named_with_the_remedy(asking: tuple[int, ...], words: str) -> None:
    job = Job()
    for rank in asking:
        job.asks(rank)
    job.steps(STEPS + 1, later=SECONDS)
    (told,) = job.told
    assert told.startswith(words)
    assert "without `if rank == 0`" in told


def test_a_rank_that_is_slow_has_time_and_ends_the_warning() -> None:
    job = Job()
    for rank in range(3):
        job.asks(rank)
    job.steps(STEPS - 1, later=SECONDS)
    assert job.told == [], "few steps"
    job.steps(STEPS + 1, later=SECONDS / 2)
    assert job.told == [], "little time"
    job.steps(STEPS + 1, later=SECONDS)
    assert len(job.told) == 1
    job.asks(3, later=SECONDS)
    assert job.told == []


@pytest.mark.parametrize("asking", [(), (0, 1, 2, 3), (None,)])
def test_nobody_is_named_if_all_call_it_or_none(asking: tuple[int | None, ...]) -> None:
    """A script may leave the change to the last regular snapshot, and may hide its ranks."""
    job = Job()
    for rank in asking:
        job.asks(rank)
    job.steps(STEPS + 1, later=SECONDS)
    assert job.told == []
