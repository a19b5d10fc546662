"""The service's decision whether the processes of a job hang, and which ranks are behind."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from agent.registry.stepping import NAMES, POLICY, WALL, Job
from ddpjob_agent.registry.decisions import decide
from ddpjob_agent.registry.messages import on_message
from ddpjob_agent.registry.registration import (
    extend_deadlines,
)
from ddpjob_agent.registry.state.registry_state import initial_state
from ddpjob_protocol.codec import encode
from ddpjob_protocol.messages.control import RankGroup, ServiceState
from ddpjob_protocol.messages.membership import MembershipId


@pytest.mark.parametrize(
    ("seconds", "limit"),
    [
        pytest.param(0.1, 60, id="quick_steps_have_a_minute"),
        pytest.param(3, 60, id="where_both_limits_meet"),
        pytest.param(30, 600, id="slow_steps_have_twenty_times_their_time"),
    ],
)
def test_no_step_for_many_times_as_long_as_one_takes(seconds: float, limit: float) -> None:
    job = Job()
    job.steps(1, 10, seconds)
    at = job.now
    assert job.stall_after(limit - 0.5) is None
    stall = job.stall_after(1)
    assert stall is not None
    assert (stall.since, stall.step) == (WALL + at, 10)
    assert stall.usual_step_seconds == pytest.approx(seconds)


def test_what_was_found_stays_the_same_until_a_step_is_done() -> None:
    job = Job()
    job.steps(1, 10)
    first = job.stall_after(61)
    job.alive(9, 9, 9)
    assert first is not None
    assert job.stall_after(3600) == first
    job.step(11)
    assert job.stall_after(1) is None


def test_one_slow_step_does_not_make_steps_slow() -> None:
    job = Job()
    job.steps(1, 10)
    job.step(11, after=25)
    assert job.stall_after(59) is None
    assert job.stall_after(2) is not None


def test_a_pause_that_ended_by_itself_may_come_again() -> None:
    """A periodic evaluation is reported as a stall at most once."""
    job = Job()
    job.steps(1, 10)
    assert job.stall_after(100) is not None
    job.steps(11, 20)
    assert job.stall_after(200) is None
    assert job.stall_after(3) is not None


def test_steps_that_were_not_reported_one_by_one_are_no_slower() -> None:
    job = Job()
    for number in range(10, 60, 10):
        job.step(number, after=100)
    stall = job.stall_after(300)
    assert stall is not None
    assert stall.usual_step_seconds == 10


def test_a_repeated_report_is_no_further_step() -> None:
    """The last step of a loop, with the result."""
    job = Job()
    job.steps(1, 10)
    job.step(10, after=59)
    assert job.stall_after(2) is not None


def test_a_job_that_hangs_at_its_second_step_is_measured_by_the_first() -> None:
    job = Job()
    job.step(1, after=10)
    assert job.stall_after(199) is None
    assert job.stall_after(2) is not None


# --- the end of a training ---------------------------------------------------------------------------


def ended(job: Job, name: str) -> None:
    on_message(job.state, name, {"type": "exited", "membership": job.id, "failure": None}, job.now)
    decide(job.state, job.now)


def one_ends(job: Job) -> None:
    job.steps(1, 10)
    ended(job, "b")


def the_reporter_ends(job: Job) -> None:
    job.steps(1, 10)
    job.alive(10, 10, 10)
    ended(job, "a")


def one_finishes_in_live_mode(job: Job) -> None:
    job.steps(1, 10)
    on_message(job.state, "b", {"type": "finished", "membership": job.id}, job.now)


def all_steps_are_done(job: Job) -> None:
    job.steps(991, 1000)


@pytest.mark.parametrize(
    ("happens", "live", "gone", "left"),
    [
        pytest.param(one_ends, False, ("b",), ("a", "c"), id="one_ends"),
        pytest.param(the_reporter_ends, False, ("a",), ("b", "c"), id="the_reporter_ends"),
        pytest.param(one_finishes_in_live_mode, True, (), NAMES, id="one_finishes_in_live_mode"),
        pytest.param(all_steps_are_done, False, (), NAMES, id="all_steps_are_done"),
    ],
)
def test_commands_that_do_not_end_hang(
    happens: Any, live: bool, gone: tuple[str, ...], left: tuple[str, ...]
) -> None:
    """The last save, an evaluation and an upload have ten minutes more than a step."""
    job = Job(live=live)
    happens(job)
    assert job.stall_after(0) is None
    step = job.report().step
    assert job.stall_after(659) is None
    stall = job.stall_after(2)
    assert stall is not None
    assert (stall.step, stall.ended, stall.left) == (step, gone, left)
    assert job.stall_after(3600) == stall


def test_each_end_and_each_step_gives_the_others_time() -> None:
    job = Job()
    one_ends(job)
    job.alive(10, None, 10)
    job.stall_after(600)
    job.alive(11, None, 10)
    assert job.stall_after(600) is None, "a process has done a step"
    ended(job, "c")
    assert job.stall_after(600) is None, "a further command has ended"
    assert job.stall_after(61) is not None
    job.alive(12)
    assert job.stall_after(1) is None


def test_only_those_who_are_left_lag() -> None:
    job = Job()
    job.steps(1, 10)
    job.alive(10, 10, 9)
    ended(job, "a")
    job.stall_after(660)
    job.alive(None, 10, 9)
    stall = job.stall_after(1)
    assert stall is not None
    assert [(each.ranks, each.behind) for each in stall.groups] == [((2,), True), ((1,), False)]


def job_of_a_restarted_service() -> Job:
    """A job whose service was started again after ten steps."""
    job = Job()
    assert job.state.current is not None
    membership = dataclasses.replace(job.state.current, id=MembershipId(1, 1, 7))
    job.state = initial_state(1, 2, WALL)
    job.expect(*NAMES)
    step = {"event": "step", "step": 10, "total": 1000}
    for name in NAMES:
        job.hello(name, membership=encode(membership), reports=[step])
    return job


def test_a_hang_before_the_end_is_none_of_the_end() -> None:
    job = Job()
    job.steps(1, 10)
    assert job.stall_after(61) is not None
    ended(job, "b")
    assert job.stall_after(600) is None
    assert job.stall_after(61) is not None


def test_a_restarted_service_measures_the_end_again() -> None:
    job = job_of_a_restarted_service()
    ended(job, "b")
    assert job.stall_after(600) is None
    stall = job.stall_after(61)
    assert stall is not None
    assert (stall.step, stall.left) == (10, ("a", "c"))


# --- never ------------------------------------------------------------------------------------------


def never_reported(job: Job) -> None:
    job.alive(0, 0, 0)


def one_ended_without_reports(job: Job) -> None:
    """The others may work: no process of this script reports a step."""
    ended(job, "b")


def another_membership(job: Job) -> None:
    job.steps(1, 10)
    on_message(job.state, "c", {"type": "bye"}, job.now)


def too_few_are_left(job: Job) -> None:
    job.policy = dataclasses.replace(POLICY, minimum=3)
    job.expect(*NAMES)
    another_membership(job)


def told_of_an_old_membership(job: Job) -> None:
    old = job.id
    another_membership(job)
    decide(job.state, job.now)
    report = {"event": "step", "step": 11, "total": 1000}
    on_message(job.state, "a", {"type": "report", "membership": old, "report": report}, job.now)


@pytest.mark.parametrize(
    "happens",
    [
        never_reported,
        one_ended_without_reports,
        another_membership,
        too_few_are_left,
        told_of_an_old_membership,
    ],
)
def test_no_process_is_reported_to_hang(happens: Any) -> None:
    job = Job()
    happens(job)
    assert job.stall_after(1e6) is None


def test_a_stall_ends_with_its_membership() -> None:
    job = Job()
    job.steps(1, 10)
    assert job.stall_after(61) is not None
    on_message(job.state, "c", {"type": "bye"}, job.now)
    assert job.stall_after(0) is None
    assert job.report().state is ServiceState.RUNNING


def test_a_stall_outlasts_a_change_that_waits_for_the_step_that_hangs() -> None:
    """In live mode a planned change waits for the end of a step: it does not end a stall."""
    job = Job(live=True)
    job.steps(1, 10)
    stall = job.stall_after(61)
    assert stall is not None
    on_message(job.state, "c", {"type": "bye"}, job.now)
    assert job.stall_after(0) == stall, "the processes are asked for a step"
    for name in NAMES:
        on_message(job.state, name, {"type": "promise", "step": 11}, job.now)
    assert job.stall_after(0) == stall
    assert job.state.current is not None
    assert (job.state.current.id.round, job.state.current.after) == (2, 11)
    job.step(12)
    assert job.stall_after(1) is None


def test_none_begins_while_processes_are_asked_for_a_step() -> None:
    job = Job(live=True)
    job.steps(1, 10)
    job.stall_after(59)
    on_message(job.state, "c", {"type": "bye"}, job.now)
    assert job.stall_after(0) is None
    assert job.stall_after(3) is None


def test_a_service_that_stood_still_does_not_blame_the_processes() -> None:
    job = Job()
    job.steps(1, 10)
    job.now += 100
    extend_deadlines(job.state, 100)
    assert job.stall_after(59) is None
    assert job.stall_after(2) is not None


def test_a_restarted_service_measures_steps_again() -> None:
    """Messages that arrive at once are older: they do not show the time of a step."""
    job = job_of_a_restarted_service()
    job.step(11)
    assert job.stall_after(1000) is None
    job.step(12)
    assert job.stall_after(1e5) is not None


# --- ranks behind ----------------------------------------------------------------------------------


def hung(*, alive_at_the_end: tuple[int | None, ...], **where: str) -> tuple[RankGroup, ...]:
    """The position of each rank, once no step is done; all were alive until then."""
    job = Job()
    job.steps(1, 9)
    job.alive(9, 9, 9)
    job.step(10)
    job.stall_after(58)
    job.alive(*alive_at_the_end, **where)
    stall = job.stall_after(3)
    assert stall is not None
    return stall.groups


def test_who_has_done_fewer_steps_lags() -> None:
    assert hung(alive_at_the_end=(10, 9, 10)) == (
        RankGroup((1,), ("b",), 9, "train.py:9", behind=True),
        RankGroup((0, 2), ("a", "c"), 10, "train.py:9"),
    )


def test_who_gives_no_sign_of_life_lags() -> None:
    """A process that was stopped in a step: the others wait for it in the same step."""
    assert hung(alive_at_the_end=(9, 9, None)) == (
        RankGroup((2,), ("c",), 9, "train.py:9", silent=True, behind=True),
        RankGroup((0, 1), ("a", "b"), 9, "train.py:9"),
    )


def test_nobody_lags_where_all_wait() -> None:
    standings = hung(alive_at_the_end=(10, 10, 10), where="train.py:12 in main")
    assert standings == (RankGroup((0, 1, 2), ("a", "b", "c"), 10, "train.py:12 in main"),)


def test_storages_are_distinguished() -> None:
    job = Job()
    job.steps(1, 10)
    job.stall_after(60)
    job.alive(10, None, 10, where="train.py:12")
    job.alive(None, 10, where="data.py:3 in read")
    stall = job.stall_after(1)
    assert stall is not None
    assert {each.where: each.ranks for each in stall.groups} == {
        "train.py:12": (0, 2),
        "data.py:3 in read": (1,),
    }


def test_an_unknown_rank_is_not_called_late() -> None:
    job = Job()
    job.steps(1, 10)
    job.stall_after(60)
    job.alive(10, 10)
    stall = job.stall_after(1)
    assert stall is not None
    assert stall.groups[-1] == RankGroup((2,), (), None)
    assert not any(each.behind for each in stall.groups)


def test_words_about_another_membership_do_not_count() -> None:
    job = Job()
    job.steps(1, 10)
    job.stall_after(60)
    job.alive(10, 10, 10)
    job.alive(None, 3, membership="1.1.99")
    stall = job.stall_after(1)
    assert stall is not None
    assert [each.ranks for each in stall.groups] == [(0, 1, 2)]


def test_ranks_of_the_membership_before_are_not_reported() -> None:
    job = Job()
    job.steps(1, 10)
    job.alive(10, 10, 3)
    on_message(job.state, "c", {"type": "bye"}, job.now)
    decide(job.state, job.now)
    job.steps(11, 20)
    job.stall_after(60)
    job.alive(20, 20)
    stall = job.stall_after(1)
    assert stall is not None
    assert [each.ranks for each in stall.groups] == [(0, 1)]
