"""The state of an agent after orders of the service, and the effects of each order."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from ddpjob_agent.worker.decisions.orders import (
    AgentState,
    Effects,
    Run,
    follow,
    hello_message,
    on_exit,
    on_service_lost,
    replace_incarnation,
)
from ddpjob_protocol.codec import decode, encode
from ddpjob_protocol.messages.agent import Failure
from ddpjob_protocol.messages.membership import Cause, Member, Membership, MembershipId
from ddpjob_protocol.messages.process import Assignment

ME, FIRST = Member("me", "now", "127.0.0.1", 2), Member("first", "its", "127.0.0.1", 3)
FAILURE = Failure(at=1.0, summary="rank 0: boom")
HALT = {"type": "halt", "last": None, "files": None, "planned": False}
PLANNED_HALT = {**HALT, "planned": True}
STAY = {"type": "stay", "leave": False, "after": None, "save": False}
LEAVE = {"type": "stay", "leave": True, "after": 7, "save": True}
FINISH = {"type": "finish", "ok": True, "reason": ""}

Step = dict[str, Any] | Callable[[AgentState], None]


def membership(n: int, me: Member = ME, cause: Cause = Cause.LOST) -> Membership:
    return Membership(MembershipId(1, 1, n), (FIRST, me), cause, "")


def run(
    n: int, me: Member = ME, cause: Cause = Cause.LOST, *, live: bool = False, asked: bool = False
) -> dict[str, Any]:
    """The order to run membership n."""
    return {
        "type": "run", "membership": encode(membership(n, me, cause)), "live": live, "asked": asked,
        "last": None, "files": None, "port": 4000 + n, "reach": {}, "seal": f"seal {n}",
    }  # fmt: skip


LIVE = functools.partial(run, live=True)
BEFORE = dataclasses.replace(ME, incarnation="before")


def ends(failure: Failure | None = None) -> Step:
    """The wanted run ends."""

    def step(state: AgentState) -> None:
        assert state.wanted is not None
        on_exit(state, state.wanted, failure)

    return step


def loses_service(state: AgentState) -> None:
    on_service_lost(state, "new")


def is_stuck(state: AgentState) -> None:
    replace_incarnation(state, "new")


def is_told_to_end(state: AgentState) -> None:
    state.left_at = 1.0


def after(steps: Sequence[Step], *, finished: bool = False) -> AgentState:
    state = AgentState(ME)
    for step in steps:
        if callable(step):
            step(state)
        else:
            follow(state, step, finished=finished)
    return state


def processes_of(state: AgentState) -> str:
    """The processes that the agent wants: of a membership, live, or none."""
    if state.wanted is None:
        return ""
    return str(state.wanted.membership.id) if state.wanted.membership else "live"


@pytest.mark.parametrize(
    ("steps", "held", "processes"),
    [
        pytest.param([], "", "", id="nothing_yet"),
        pytest.param([run(2)], "1.1.2", "1.1.2", id="run"),
        pytest.param([run(2), run(3)], "1.1.3", "1.1.3", id="run_higher"),
        pytest.param([run(2), run(1)], "1.1.2", "1.1.2", id="run_lower"),
        pytest.param([run(2), run(2)], "1.1.2", "1.1.2", id="run_again"),
        pytest.param([run(2, BEFORE)], "", "", id="run_of_an_earlier_agent"),
        pytest.param([run(1), run(2, BEFORE)], "1.1.1", "1.1.1", id="higher_of_an_earlier"),
        pytest.param([LIVE(2)], "1.1.2", "live", id="live"),
        pytest.param([LIVE(2), LIVE(3)], "1.1.3", "live", id="live_higher"),
        pytest.param([LIVE(2), LIVE(1)], "1.1.2", "live", id="live_lower"),
        pytest.param([LIVE(2, BEFORE)], "", "", id="live_of_an_earlier_agent"),
        pytest.param([run(2), LIVE(2)], "1.1.2", "live", id="becomes_live_in_one_membership"),
        pytest.param([run(2), LIVE(3)], "1.1.3", "live", id="becomes_live"),
        pytest.param([run(2), HALT], "1.1.2", "", id="halt"),
        pytest.param([run(2), HALT, run(1)], "1.1.2", "", id="halt_then_lower"),
        pytest.param([run(2), HALT, run(2)], "1.1.2", "", id="halt_then_again"),
        pytest.param([run(2), HALT, run(3)], "1.1.3", "1.1.3", id="halt_then_higher"),
        pytest.param([LIVE(2), HALT, LIVE(2)], "1.1.2", "live", id="halt_then_live_again"),
        pytest.param([LIVE(2), HALT, LIVE(1)], "1.1.2", "", id="halt_then_live_lower"),
        pytest.param([STAY], "", "live", id="stay_before_any_membership"),
        pytest.param([LIVE(2), STAY], "1.1.2", "live", id="stay_in_live_mode"),
        pytest.param([run(2), STAY], "1.1.2", "live", id="stay_makes_processes_live"),
        pytest.param([LIVE(2), LEAVE], "1.1.2", "live", id="leave"),
        pytest.param([run(2), FINISH], "1.1.2", "", id="finish"),
        pytest.param([LIVE(2), FINISH], "1.1.2", "", id="finish_in_live_mode"),
        pytest.param([run(2), loses_service], "1.1.2", "", id="service_lost"),
        pytest.param([run(2), loses_service, run(3)], "1.1.3", "1.1.3", id="service_is_back"),
        pytest.param([LIVE(2), loses_service, LIVE(2)], "1.1.2", "", id="no_longer_that_member"),
        pytest.param([LIVE(2), is_stuck, LIVE(3)], "1.1.2", "", id="replaced_is_no_member"),
    ],
)
def test_an_agent_holds_the_highest_membership_of_its_own(
    steps: Sequence[Step], held: str, processes: str
) -> None:
    state = after(steps)
    hello = hello_message(state)
    known = hello["membership"]
    assert (str(decode(Membership, known).id) if known else "") == held
    assert processes_of(state) == processes
    assert hello["running"] == bool(processes)
    assert hello["live"] == (processes == "live")


@pytest.mark.parametrize(
    ("steps", "seal"),
    [
        ([HALT], ""),
        ([run(2), HALT], "seal 2"),
        ([run(2), run(3)], "seal 3"),
        ([run(3), run(2)], "seal 3"),
        ([run(2), run(3, BEFORE)], "seal 2"),
    ],
)
def test_an_agent_returns_the_seal_of_the_membership_that_it_holds(
    steps: Sequence[Step], seal: str
) -> None:
    assert hello_message(after(steps))["seal"] == seal


@pytest.mark.parametrize("leaving", [False, True])
def test_the_hello_reports_that_the_worker_leaves(leaving: bool) -> None:
    """The service that received the goodbye may have ended."""
    steps: list[Step] = [run(2), is_told_to_end] if leaving else [run(2)]
    assert hello_message(after(steps))["leaving"] == leaving


@pytest.mark.parametrize(
    ("steps", "done", "failure"),
    [
        pytest.param([run(2), ends()], True, None, id="succeeded"),
        pytest.param([run(2), ends(FAILURE)], False, FAILURE, id="failed"),
        pytest.param([run(2), ends(FAILURE), run(2)], False, FAILURE, id="the_same_order"),
        pytest.param([run(2), ends(FAILURE), run(1)], False, FAILURE, id="a_lower_membership"),
        pytest.param([run(2), ends(FAILURE), HALT], False, FAILURE, id="halt"),
        pytest.param([run(2), ends(FAILURE), run(3)], False, None, id="a_higher_membership"),
        pytest.param([run(2), ends(), run(3)], False, None, id="succeeded_in_a_lower_one"),
        pytest.param([LIVE(2), ends(), LIVE(2)], True, None, id="live_the_same_order"),
        pytest.param([LIVE(2), ends(FAILURE), STAY], False, None, id="live_another_order"),
    ],
)
def test_the_hello_reports_how_the_command_ended_in_the_membership(
    steps: Sequence[Step], done: bool, failure: Failure | None
) -> None:
    hello = hello_message(after(steps))
    assert (hello["done"], hello["failure"]) == (done, encode(failure))


@pytest.mark.parametrize(
    ("orders", "again", "restarts"),
    [
        pytest.param([LIVE(2)], LIVE(2), False, id="the_order_repeated"),
        pytest.param([LIVE(2)], LIVE(3), True, id="a_higher_membership"),
        pytest.param([LIVE(2)], STAY, True, id="stay_after_run"),
        pytest.param([STAY], STAY, False, id="stay_repeated"),
        pytest.param([STAY], LIVE(2), True, id="run_after_stay"),
    ],
)
def test_live_processes_that_ended_start_again_under_another_order(
    orders: Sequence[Step], again: dict[str, Any], restarts: bool
) -> None:
    state = after([*orders, ends()])
    ended = state.wanted
    follow(state, again, finished=False)
    assert (state.wanted is not ended) == restarts


@pytest.mark.parametrize(("finished", "restarts"), [(False, False), (True, True)])
def test_live_processes_that_did_all_steps_start_again_in_a_higher_membership(
    finished: bool, restarts: bool
) -> None:
    state = after([LIVE(2)])
    before = state.wanted
    follow(state, LIVE(3), finished=finished)
    assert (state.wanted is not before) == restarts
    last = state.wanted
    follow(state, LIVE(3), finished=finished)
    assert state.wanted is last, "the order repeated starts nothing"


OF_RUN = Effects(syncs_files=True, sets_last_step=True)


@pytest.mark.parametrize(
    ("before", "order", "effects"),
    [
        pytest.param([], run(2), OF_RUN._replace(check=membership(2)), id="run"),
        pytest.param([run(2)], run(2), OF_RUN, id="run_again"),
        pytest.param([run(2)], run(1), Effects(), id="run_lower"),
        pytest.param([], run(2, BEFORE), Effects(), id="run_of_an_earlier_agent"),
        pytest.param(
            [],
            LIVE(2),
            Effects(membership(2), "1.1.2", Assignment(membership(2), 3), syncs_files=True),
            id="live_after_the_ranks_of_the_first_worker",
        ),
        pytest.param(
            [LIVE(2)],
            LIVE(2, asked=True),
            Effects(
                None, "1.1.2", Assignment(membership(2), 3, stop_requested=True), syncs_files=True
            ),
            id="live_asked_for_a_last_step",
        ),
        pytest.param([LIVE(2)], LIVE(1), Effects(), id="live_lower"),
        pytest.param([run(2)], HALT, OF_RUN, id="halt"),
        pytest.param([LIVE(2)], STAY, Effects(assignment=Assignment()), id="stay"),
        pytest.param(
            [LIVE(2)],
            LEAVE,
            Effects(assignment=Assignment(leave=True, last_step=7, save=True)),
            id="leave_after_a_saved_step",
        ),
        pytest.param([run(2)], FINISH, Effects(), id="finish"),
    ],
)
def test_effects_of_an_order(
    before: Sequence[Step], order: dict[str, Any], effects: Effects
) -> None:
    assert follow(after(before), order, finished=False) == effects


@pytest.mark.parametrize(
    ("steps", "by_plan", "grace"),
    [
        pytest.param([run(2), run(3)], False, 0, id="after_a_loss"),
        pytest.param([run(2), run(3, cause=Cause.JOINED)], True, 3, id="before_a_join"),
        pytest.param([run(2), run(3, cause=Cause.LEFT)], True, 3, id="after_a_leave"),
        pytest.param([run(2), HALT], False, 0, id="halt"),
        pytest.param([run(2), PLANNED_HALT], True, 0, id="planned_halt"),
        pytest.param([run(2), PLANNED_HALT, run(3)], False, 0, id="lost_after_a_planned_halt"),
        pytest.param([run(2), is_told_to_end], True, 0, id="leaving"),
        pytest.param([run(2), PLANNED_HALT, loses_service], False, 0, id="service_lost"),
    ],
)
def test_only_processes_that_could_continue_have_time_to_end(
    steps: Sequence[Step], by_plan: bool, grace: float
) -> None:
    state = after(steps)
    assert (state.stops_by_plan, state.grace_seconds) == (by_plan, grace)


@pytest.mark.parametrize(
    ("steps", "incarnation"),
    [
        pytest.param([run(2), loses_service], "now", id="service_lost"),
        pytest.param([LIVE(2), loses_service], "new", id="service_lost_in_live_mode"),
        pytest.param([LIVE(2), is_stuck], "new", id="stuck"),
    ],
)
def test_live_processes_never_come_back_as_the_same_worker(
    steps: Sequence[Step], incarnation: str
) -> None:
    assert decode(Member, hello_message(after(steps))["member"]).incarnation == incarnation


def test_a_run_has_the_port_of_its_order_and_equals_no_other() -> None:
    state = after([run(2)])
    assert state.wanted is not None
    assert state.wanted.port == 4002
    assert Run(None) != Run(None)
