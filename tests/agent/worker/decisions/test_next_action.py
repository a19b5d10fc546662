"""The next action of a supervisor: a table of what it sees."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from ddpjob_agent.worker.decisions.next_action import Action, Steps, View, next_action
from ddpjob_agent.worker.decisions.orders import Run
from ddpjob_protocol.messages.membership import Cause, Member, Membership, MembershipId

NOW, LATER = 100.0, 110.0
MEMBER = Member("a", "first", "127.0.0.1", 1)
ONE, TWO = (
    Run(Membership(MembershipId(1, 1, n), (MEMBER,), Cause.JOINED, "")) for n in range(1, 3)
)
LIVE, LIVE_AGAIN = Run(None), Run(None)

IDLE: dict[str, Any] = {}
RUNS: dict[str, Any] = {"wanted": ONE, "started": ONE}
RUNS_LIVE: dict[str, Any] = {"wanted": LIVE, "started": LIVE}
REPLACED: dict[str, Any] = {"wanted": TWO, "started": ONE}
HALTED: dict[str, Any] = {"wanted": None, "started": ONE}
LEAVES: dict[str, Any] = {"is_leaving": True, "copies_until": LATER}
LEFT: dict[str, Any] = {**LEAVES, "has_left": True, "wanted": ONE}
STEPS = Steps(accepts_stops=True, has_last_step=True, until=LATER)


def steps(**changes: Any) -> dict[str, Any]:
    return {"steps": dataclasses.replace(STEPS, **changes)}


UNTIL = {"steps": Steps(until=LATER)}
OVER = {"steps": Steps(until=NOW - 1)}
WRITES = {"is_planned": True, "is_writing": True}
SAVE = {"steps": Steps(others_save=True)}

TABLE: dict[str, tuple[dict[str, Any], Action]] = {
    "nothing is wanted": (IDLE, Action.WAIT),
    "the wanted run runs": (RUNS, Action.WAIT),
    "the wanted run has ended": ({**RUNS, "has_ended": True}, Action.WAIT),
    "a run is wanted": ({"wanted": ONE}, Action.START),
    "live processes are wanted": ({"wanted": LIVE}, Action.START),
    "its replica is not installed everywhere": ({"wanted": ONE, "may_start": False}, Action.WAIT),
    "its replica cannot be installed": ({"wanted": ONE, "cannot_install": True}, Action.FAIL),
    "others save": ({"wanted": ONE, **SAVE}, Action.AWAIT_SAVES),
    "others save, and no replica is there": (
        {"wanted": ONE, "may_start": False, **SAVE},
        Action.AWAIT_SAVES,
    ),
    "others save too long": (
        {"wanted": ONE, "steps": Steps(others_save=True, others_until=NOW)},
        Action.START,
    ),
    "others save, with time left": (
        {"wanted": ONE, "steps": Steps(others_save=True, others_until=LATER)},
        Action.AWAIT_SAVES,
    ),
    "others save while this one runs": ({**RUNS, **SAVE}, Action.WAIT),
    "replaced": (REPLACED, Action.PREPARE_STOP),
    "halted": (HALTED, Action.PREPARE_STOP),
    "started again in live mode": (
        {"wanted": LIVE_AGAIN, "started": LIVE},
        Action.PREPARE_STOP,
    ),
    "replaced, prepared": ({**REPLACED, **UNTIL}, Action.STOP),
    "replaced, with time over": ({**REPLACED, **OVER}, Action.STOP),
    "replaced while it writes": ({**REPLACED, **UNTIL, **WRITES}, Action.AWAIT_LAST_STEP),
    "replaced without a plan while it writes": (
        {**REPLACED, **UNTIL, "is_writing": True},
        Action.STOP,
    ),
    "replaced while it writes too long": ({**REPLACED, **OVER, **WRITES}, Action.CUT_OFF),
    "replaced while it writes, but ended": (
        {**REPLACED, **UNTIL, **WRITES, "has_ended": True},
        Action.STOP,
    ),
    "in the last step": ({**REPLACED, **steps()}, Action.AWAIT_LAST_STEP),
    "halted in the last step": ({**HALTED, **steps()}, Action.AWAIT_LAST_STEP),
    "in the last step, at the end of its time": (
        {**REPLACED, **steps(until=NOW)},
        Action.AWAIT_LAST_STEP,
    ),
    "in the last step for too long": ({**REPLACED, **steps(until=NOW - 1)}, Action.CUT_OFF),
    "after the last step": ({**REPLACED, **steps(has_stopped=True)}, Action.STOP),
    "without a last step": ({**REPLACED, **steps(has_last_step=False)}, Action.STOP),
    "without a last step, and it writes": (
        {**REPLACED, **WRITES, **steps(has_last_step=False)},
        Action.STOP,
    ),
    "live processes are replaced": (
        {"wanted": LIVE_AGAIN, "started": LIVE, **steps()},
        Action.STOP,
    ),
    "SIGTERM": ({**RUNS, **LEAVES}, Action.PREPARE_STOP),
    "SIGTERM before a start": ({"wanted": ONE, **LEAVES}, Action.STOP),
    "SIGTERM, while the workers agree": (
        {**RUNS, **LEAVES, **steps(has_last_step=False)},
        Action.AWAIT_LAST_STEP,
    ),
    "SIGTERM, while another run is wanted": (
        {**REPLACED, **LEAVES, **steps(has_last_step=False)},
        Action.STOP,
    ),
    "SIGTERM in live mode": ({**RUNS_LIVE, **LEAVES, **UNTIL}, Action.AWAIT_LAST_STEP),
    "SIGTERM in live mode, for too long": ({**RUNS_LIVE, **LEAVES, **OVER}, Action.CUT_OFF),
    "SIGTERM in live mode, and ended": (
        {**RUNS_LIVE, **LEAVES, **UNTIL, "has_ended": True},
        Action.STOP,
    ),
    "SIGTERM, and stopped": (LEFT, Action.END),
    "others copy": ({**LEFT, "others_copy": True}, Action.HAND_OVER),
    "others copy for too long": (
        {**LEFT, "others_copy": True, "copies_until": NOW - 1},
        Action.END,
    ),
    "others copy, and the job is over": (
        {**LEFT, "others_copy": True, "is_over": True},
        Action.END,
    ),
    "the job is over": ({"is_over": True}, Action.END),
    "the job is over while the command runs": ({**HALTED, "is_over": True}, Action.PREPARE_STOP),
}


@pytest.mark.parametrize(("seen", "action"), TABLE.values(), ids=TABLE)
def test_next_action(seen: dict[str, Any], action: Action) -> None:
    assert next_action(View(**seen), NOW) is action


def test_each_action_is_in_the_table() -> None:
    assert {action for _, action in TABLE.values()} == set(Action)
