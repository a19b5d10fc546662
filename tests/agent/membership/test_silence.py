"""The early loss of a silent process, as a table: signs of life in, the time of each loss out."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from agent.membership.views import NOW
from ddpjob_agent.membership.silence import Signs, longest_step, overdue

PATIENCE, DEADLINE = 0.5, 0.8
A, C = (Signs(name, slowest=0.01, answered_at=NOW, stepped_at=NOW - 1) for name in "ac")
SILENT = Signs("b", asked_at=NOW - 0.5, slowest=0.02, answered_at=NOW - 2, stepped_at=NOW - 2)


def lost_after(*members: Signs) -> dict[str, float]:
    """Return the seconds from the question to the loss."""
    found = overdue(members, PATIENCE, DEADLINE, NOW)
    return {name: round(at - (NOW - 0.5), 2) for name, at in found.items()}


def changed(member: Signs, **changes: Any) -> Signs:
    return dataclasses.replace(member, **changes)


@pytest.mark.parametrize(
    ("members", "lost"),
    [
        ((A, SILENT, C), {"b": 0.8}),
        ((A, SILENT), {"b": 0.8}),
        ((SILENT,), {}),  # no other member answers.
        ((A, changed(SILENT, asked_at=NOW - 0.2), C), {}),  # an answer takes a moment.
        ((A, changed(SILENT, asked_at=None), C), {}),  # it has answered.
        ((A, changed(SILENT, connected=False), C), {}),  # a closed connection has a grace.
        ((A, SILENT, changed(C, connected=False)), {}),  # most do not answer.
        ((A, SILENT, changed(C, asked_at=NOW - 0.5)), {}),  # most do not answer.
        ((A, changed(SILENT, slowest=0.5), C), {"b": 2.0}),  # it was slow before.
        ((A, SILENT, changed(C, slowest=0.3)), {"b": 1.2}),  # another one is slow.
        ((A, SILENT, changed(C, stepped_at=NOW - 0.1)), {}),  # a step was done.
        ((A, SILENT, changed(C, stepped_at=None)), {"b": 0.8}),  # one reports no steps.
        (
            (changed(A, stepped_at=None), SILENT, changed(C, stepped_at=None)),
            {},
        ),  # none reports steps.
        ((changed(A, answered_at=NOW - 0.8), SILENT, C), {}),  # its step may be older
    ],
)
def test_lost_members(members: tuple[Signs, ...], lost: dict[str, float]) -> None:
    assert lost_after(*members) == lost


@pytest.mark.parametrize(
    ("pauses", "seconds"),
    [
        ((0.1, 0.1, 0.1), 0.5),
        ((0.2, 0.2, 0.2), 0.8),
        ((0.1, 0.1, 0.1, 0.1, 3.0), 6.0),  # an evaluation now and then
    ],
)
def test_a_step_may_take_longer_than_steps_usually_take(
    pauses: tuple[float, ...], seconds: float
) -> None:
    assert longest_step(pauses) == pytest.approx(seconds)
