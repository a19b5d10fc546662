"""Which of the things that happen to jobs happen to the same one.

All that one job bears happens to it in turn. With DDPJOB_E2E_ALONE=1 each has a job of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

ALONE = os.environ.get("DDPJOB_E2E_ALONE") == "1"

Event = Callable[..., Any]


def in_turn(*events: Event) -> list[object]:
    """Rows of a test that is given a list of what happens."""
    if ALONE:
        return [pytest.param([event], id=event.__name__) for event in events]
    return [pytest.param(list(events), id="in_turn")]


def happen(events: list[Event], subtests: pytest.Subtests, do: Callable[[Event], None]) -> None:
    """One after the other; a job on which one went wrong bears no further one."""
    for event in events:
        went = False
        with subtests.test(event.__name__):
            do(event)
            went = True
        assert went, f"see {event.__name__}"
