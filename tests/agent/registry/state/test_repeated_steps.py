"""The number of repeated steps, from the steps done before and the loaded snapshot."""

from __future__ import annotations

import pytest

from ddpjob_agent.registry.state.repeated_steps import RepeatedSteps
from ddpjob_protocol.messages.membership import MembershipId


def membership(n: int) -> MembershipId:
    return MembershipId(1, 1, n)


@pytest.fixture
def repeats() -> RepeatedSteps:
    """A membership that has loaded nothing, and has reported 20 steps."""
    made = RepeatedSteps()
    made.on_membership(membership(1), 0)
    made.on_resumed(0, loaded=True)
    made.on_step(20)
    return made


def test_steps_since_the_snapshot(repeats: RepeatedSteps) -> None:
    repeats.on_membership(membership(2), 0)
    repeats.on_resumed(14, loaded=True)
    assert (repeats.newest, repeats.total) == (6, 6)


def test_all_of_them_without_a_snapshot(repeats: RepeatedSteps) -> None:
    repeats.on_membership(membership(2), 0)
    repeats.on_resumed(0, loaded=True)
    assert repeats.total == 20


def test_none_where_the_last_step_was_saved_or_kept_in_memory(repeats: RepeatedSteps) -> None:
    repeats.on_membership(membership(2), 0)
    repeats.on_resumed(20, loaded=True)
    repeats.on_step(30)
    repeats.on_membership(membership(3), 0)
    repeats.on_resumed(29, loaded=False)
    assert repeats.total == 0


@pytest.mark.parametrize("when", ["before it ends", "before they resume", "later"])
def test_last_steps_count_whenever_they_are_reported(repeats: RepeatedSteps, when: str) -> None:
    if when == "before it ends":
        repeats.on_steps_done(membership(1), 23)
    repeats.on_membership(membership(2), 0)
    if when == "before they resume":
        repeats.on_steps_done(membership(1), 23)
        repeats.on_steps_done(membership(1), 22)
    repeats.on_resumed(14, loaded=True)
    if when == "later":
        repeats.on_steps_done(membership(1), 23)
    assert (repeats.newest, repeats.total) == (9, 9)


def test_a_membership_that_came_to_nothing_changes_nothing(repeats: RepeatedSteps) -> None:
    repeats.on_membership(membership(2), 0)
    repeats.on_membership(membership(3), 0)
    repeats.on_steps_done(membership(1), 23)
    repeats.on_resumed(14, loaded=True)
    assert repeats.total == 9


def test_steps_before_another_membership_resumed_are_settled(repeats: RepeatedSteps) -> None:
    repeats.on_membership(membership(2), 0)
    repeats.on_resumed(14, loaded=True)
    repeats.on_step(16)
    repeats.on_membership(membership(3), 0)
    repeats.on_steps_done(membership(1), 23)
    repeats.on_resumed(14, loaded=True)
    assert (repeats.newest, repeats.total) == (2, 8)


def test_repeated_report_counts_once(repeats: RepeatedSteps) -> None:
    repeats.on_membership(membership(2), 0)
    for _ in range(2):
        repeats.on_resumed(14, loaded=True)
        repeats.on_step(18)
    assert repeats.total == 6


def test_a_service_that_starts_again_relearns_them() -> None:
    """From the membership those of before, from agents those of now."""
    repeats = RepeatedSteps()
    repeats.on_membership(membership(5), 8)
    repeats.on_steps_done(membership(4), 40)
    repeats.on_resumed(36, loaded=True)
    repeats.on_step(50)
    assert (repeats.newest, repeats.total) == (4, 12)
    repeats.on_membership(membership(6), 12)
    assert repeats.total == 12
