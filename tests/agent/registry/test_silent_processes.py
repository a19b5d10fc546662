"""Workers that are frozen, and workers that only seem so: which are lost, and when."""

from __future__ import annotations

import pytest

from agent.registry.silencing import MOMENT, World

STEPPING = 10.0  # seconds of steps before a row
LIVE, RESTART = 3.0, 10.0  # heartbeat deadlines
SOON = 1.3
OFFSETS = range(6, 60, 7)  # moments from a report, a heartbeat or a look to a freeze
AFTER = pytest.approx  # a deadline, to a turn


def world(names: str = "abc", *, live: bool = True, steps: bool = True) -> World:
    found = World(names, live=live, steps=steps)
    found.run(STEPPING)
    assert not found.lost
    return found


@pytest.mark.parametrize("victim", "abc")
@pytest.mark.parametrize(("live", "limit"), [(True, SOON), (False, 2.5)])
def test_a_frozen_worker_is_lost_soon(victim: str, limit: float, *, live: bool) -> None:
    """Whenever it freezes, and whenever the others report the last step."""
    for offset in OFFSETS:
        job = world(live=live)
        job.run(offset * MOMENT)
        job.freeze(victim)
        after = job.loss_after()
        assert after is not None
        assert after <= limit, f"frozen {offset} moments later"
        assert job.lost == victim


def test_of_two_workers_the_frozen_one_is_lost_soon() -> None:
    job = world("ab")
    job.freeze("a")
    after = job.loss_after()
    assert after is not None
    assert after <= SOON
    assert job.lost == "a"


def test_two_that_freeze_together_make_one_change() -> None:
    job = world("abcde")
    job.agents["d"].answer = 0.3  # so it has more time to answer than b has
    job.run(3.0)
    job.freeze("b", "d")
    after = job.loss_after()
    assert after is not None
    assert after <= SOON + 0.5
    assert {*job.lost} == {*"bd"}


def test_if_most_are_silent_the_heartbeat_deadline_counts() -> None:
    job = world()
    job.freeze("b", "c")
    assert job.loss_after() == AFTER(LIVE, abs=1.1)


def test_a_job_that_reports_no_steps_has_the_heartbeat_deadline() -> None:
    job = world(steps=False)
    job.freeze("b")
    assert job.loss_after() == AFTER(LIVE, abs=1.1)


@pytest.mark.parametrize("victim", "ab")
def test_while_training_goes_on_a_silent_agent_has_the_heartbeat_deadline(victim: str) -> None:
    """The agent of the first process, too: the others know the steps of their own processes."""
    job = world()
    job.agents[victim].is_frozen = True
    assert job.loss_after() == AFTER(LIVE, abs=1.1)


def test_a_jump_of_the_others_clocks_stalls_no_training() -> None:
    job = world()
    job.agents["a"].is_frozen = True
    for agent in job.agents.values():
        agent.clock = 3600.0
    assert job.loss_after() == AFTER(LIVE, abs=1.1)


def test_a_worker_that_thaws_in_time_is_not_lost() -> None:
    job = world()
    for _ in range(3):
        job.freeze("b")
        job.run(1.0)
        job.agents["b"].is_frozen, job.trains = False, True
        job.run(5.0)
    assert not job.lost


def test_a_slow_step_loses_nobody() -> None:
    """An evaluation or a checkpoint: no step for long, but all answer."""
    job = world(live=False)
    job.trains = False
    assert job.loss_after(60.0) is None


@pytest.mark.parametrize("answers", [(0.4, 0.5, 0.7), (0.6, 0.6, 0.6), (0.05, 0.05, 0.75)])
def test_a_starved_machine_loses_nobody(answers: tuple[float, ...]) -> None:
    """No step is done, and all answer late, or one does."""
    job = world()
    for agent, answer in zip(job.agents.values(), answers, strict=True):
        agent.answer = answer
    job.trains = False
    assert job.loss_after(20.0) is None


def test_a_burst_after_a_silence_loses_nobody() -> None:
    """The messages of one agent arrive together, while training continues."""
    job = world()
    for _ in range(10):
        job.agents["b"].is_frozen = True
        job.run(1.4)
        job.agents["b"].is_frozen = False
        job.run(2.0)
    assert not job.lost


@pytest.mark.parametrize("seconds", [0.6, 3.0, 8.0])
@pytest.mark.parametrize("machine", [True, False])
def test_time_in_which_the_service_did_not_run_counts_for_nobody(
    seconds: float, *, machine: bool
) -> None:
    """Also in the middle of a doubt: no step is done, and an answer is on its way."""
    job = world()
    job.trains = False
    late = job.agents["b"]
    late.answer = 60.0
    job.run(0.9)
    assert not job.lost
    if machine:
        job.pause(seconds)
    else:
        job.is_paused = True
        job.run(seconds)
        job.is_paused = False
    late.answer, late.sends_at = 0.3, [job.now + 0.3]
    assert job.loss_after() is None
