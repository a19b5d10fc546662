"""A job that hangs, with `onHang: Restart`: stacks first, then one failure and a restart."""

from __future__ import annotations

import dataclasses

import pytest

from agent.membership.views import order_for
from agent.registry.stepping import NAMES, POLICY, Job
from ddpjob_agent.registry.decisions import decide
from ddpjob_agent.registry.messages import on_message
from ddpjob_agent.registry.registration import on_heartbeat
from ddpjob_protocol.failures.failure_rules import FailureRule
from ddpjob_protocol.messages.control import Policy, ServiceState

RESTART = dataclasses.replace(POLICY, on_hang="Restart", backoff=0, max_failures=1)
IGNORE = dataclasses.replace(RESTART, rules=(FailureRule("Ignore", reasons=("NoProgress",)),))


def hung(policy: Policy = RESTART, *, live: bool = False) -> Job:
    """A job that has just been found to hang; its second rank is behind."""
    job = Job(policy, live=live)
    hang(job)
    return job


def hang(job: Job) -> None:
    job.steps(1, 10)
    for number in range(1, 62):
        job.alive(10, 9, 10)
        on_heartbeat_of_all(job)
        if job.stall_after(1):
            assert number > 55
            return
    raise AssertionError("no stall was detected")


def on_heartbeat_of_all(job: Job) -> None:
    for name in NAMES:
        on_heartbeat(job.state, name, job.now)


def asked(job: Job) -> list[bool]:
    """For each worker, True if its order asks for stacks."""
    return [order_for(job.state, name, job.now).get("stacks", False) for name in NAMES]


def answer(job: Job, *names: str) -> None:
    for name in names:
        text = f'Current thread\n  File "train.py", line 9 in wait_{name}'
        message = {"type": "stacks", "membership": job.id, "text": text}
        on_message(job.state, name, message, job.now)
    decide(job.state, job.now)


def test_without_the_policy_a_hang_is_only_reported() -> None:
    job = hung(POLICY)
    assert asked(job) == [False] * 3
    answer(job, *NAMES)
    job.stall_after(1000)
    assert (job.report().failures, len(job.report().memberships)) == (0, 1)


def test_a_hang_restarts_the_job_once_all_stacks_are_known() -> None:
    job = hung()
    assert asked(job) == [True] * 3
    answer(job, "a", "b")
    assert len(job.report().memberships) == 1, "the third has not answered"
    answer(job, "c")
    report = job.report()
    assert [each.cause for each in report.memberships] == ["started", "failed"]
    assert (report.state, report.failures, report.stall) == (ServiceState.RUNNING, 1, None)
    assert report.failure is not None
    assert report.failure.summary.startswith("no step for ")
    assert "after step 10 (failurePolicy.onHang: Restart); rank 1 (b) is behind at train.py:9" in (
        report.failure.summary
    )
    assert "wait_b" in report.failure.traceback
    [warning] = report.warnings
    assert (warning.reason, warning.worker, warning.ongoing) == ("HangStacks", "b", False)
    assert "wait_b" in warning.message
    assert asked(job) == [False] * 3


def test_a_worker_that_sends_no_stacks_delays_the_restart_by_seconds_only() -> None:
    job = hung()
    answer(job, "a")
    job.stall_after(9.5)
    assert len(job.report().memberships) == 1
    job.stall_after(1)
    assert len(job.report().memberships) == 2
    assert "It sent none" in job.report().warnings[0].message


def test_a_step_while_stacks_are_collected_ends_the_matter() -> None:
    job = hung()
    answer(job, "a", "b")
    job.step(11)
    job.stall_after(0)
    assert asked(job) == [False] * 3
    answer(job, "c")
    job.stall_after(20)
    assert (job.report().failures, len(job.report().memberships)) == (0, 1)


@pytest.mark.parametrize(
    ("policy", "state", "failures"),
    [
        pytest.param(RESTART, ServiceState.FAILED, 1, id="budget"),
        pytest.param(IGNORE, ServiceState.RUNNING, 0, id="rule"),
    ],
)
def test_each_hang_is_one_failure(policy: Policy, state: ServiceState, failures: int) -> None:
    job = hung(policy)
    answer(job, *NAMES)
    hang(job)
    answer(job, *NAMES)
    report = job.report()
    assert (report.state, report.failures) == (state, failures)
    if state is ServiceState.FAILED:
        assert report.reason.endswith("(failure 2, 1 restart allowed)")


def test_in_live_mode_the_worker_that_others_wait_for_starts_again() -> None:
    job = hung(live=True)
    answer(job, *NAMES)
    report = job.report()
    assert report.membership is not None
    assert [each.worker for each in report.membership.members] == ["a", "c"]
    assert (report.membership.cause.value, report.failures) == ("failed", 1)
    assert order_for(job.state, "b", job.now)["type"] == "halt", "its processes end"
    job.stall_after(2)
    assert order_for(job.state, "b", job.now)["type"] == "stay", "and start again"


def test_in_live_mode_all_start_again_if_none_is_behind() -> None:
    job = Job(RESTART, live=True)
    job.steps(1, 10)
    while job.stall_after(1) is None:
        job.alive(10, 10, 10)
    answer(job, *NAMES)
    assert {order_for(job.state, name, job.now)["type"] for name in NAMES} == {"halt"}
    job.stall_after(2)
    report = job.report()
    assert (report.state, report.failures) == (ServiceState.RUNNING, 1)
    assert report.membership is not None
    assert len(report.membership.members) == 3


def test_nothing_starts_again_at_the_end() -> None:
    """A command that has ended with 0 would run again, and the others may upload for long."""
    job = Job(RESTART)
    job.steps(1, 10)
    on_message(job.state, "b", {"type": "exited", "membership": job.id, "failure": None}, job.now)
    for _ in range(20):
        on_heartbeat_of_all(job)
        job.stall_after(60)
    assert job.report().stall is not None
    assert job.report().failures == 0
    assert job.report().state is ServiceState.RUNNING
