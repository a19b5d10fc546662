from __future__ import annotations

from datetime import timedelta

import pytest

from ddpjob_operator.api.constants import ConditionType, Reason
from ddpjob_operator.api.status import Condition
from ddpjob_operator.planner.status.conditions import condition, set_condition, state
from support.builders import NOW

RUNNING, WAITING = (
    condition(ConditionType.RUNNING, True, Reason.TRAINING, "2 workers"),
    condition(ConditionType.RUNNING, False, Reason.WAITING, "1 of 2"),
)
LATER = NOW + timedelta(minutes=1)


def test_time_stays_while_the_status_stays() -> None:
    first = set_condition((), RUNNING, NOW)
    (second,) = set_condition(first, RUNNING.model_copy(update={"message": "3 workers"}), LATER)
    assert (second.message, second.last_transition_time) == ("3 workers", NOW)


def test_time_changes_when_the_status_flips() -> None:
    (flipped,) = set_condition(set_condition((), RUNNING, NOW), WAITING, LATER)
    assert (flipped.status, flipped.last_transition_time) == ("False", LATER)


def test_other_conditions_keep_their_place() -> None:
    stalled = condition(ConditionType.STALLED, True, Reason.WORKERS_FAIL)
    conditions = set_condition(set_condition((), RUNNING, NOW), stalled, NOW)
    changed = set_condition(conditions, WAITING, LATER)
    assert [each.type for each in changed] == ["Running", "Stalled"]
    assert changed[1] == conditions[1]


@pytest.mark.parametrize(
    ("conditions", "word"),
    [
        pytest.param((), "Pending", id="nothing_known"),
        pytest.param((WAITING,), "Waiting", id="not_running"),
        pytest.param((RUNNING,), "Running", id="running"),
        pytest.param(
            (RUNNING, condition(ConditionType.RESIZING, True, Reason.JOINING)),
            "Resizing",
            id="resizing_while_running",
        ),
        pytest.param(
            (WAITING, condition(ConditionType.COMPLETE, True, Reason.COMPLETED)),
            "Complete",
            id="finished",
        ),
        pytest.param(
            (condition(ConditionType.RUNNING, None, Reason.NO_REPORT),), "Unknown", id="unheard"
        ),
    ],
)
def test_state_is_the_gravest_condition(conditions: tuple[Condition, ...], word: str) -> None:
    assert state(conditions) == word
