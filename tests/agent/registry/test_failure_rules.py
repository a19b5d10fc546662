"""The rules and the window of a failure policy, as the service applies them."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from agent.membership.views import hello
from ddpjob_agent.registry.decisions import decide
from ddpjob_agent.registry.messages import on_message
from ddpjob_agent.registry.registration import on_expectation, on_heartbeat, on_hello
from ddpjob_agent.registry.report import build_report
from ddpjob_agent.registry.state.registry_state import RegistryState, initial_state
from ddpjob_protocol.codec import decode, encode
from ddpjob_protocol.failures.failure_rules import FailureRule, merge_times
from ddpjob_protocol.messages.agent import Failure
from ddpjob_protocol.messages.control import Expectation, Policy, ServiceState
from ddpjob_protocol.messages.membership import Member, Membership
from ddpjob_protocol.parsers.expectation_check import parse_expectation

NOW = 1000.0
EPOCH = 1_700_000_000.0  # of the service's clock
BASE = Policy(settle=0, max_failures=2, backoff=0, heartbeat_deadline=1e6, live_deadline=1e6)
MEMBERS = [Member(name, f"{name}-first", "127.0.0.1", 1) for name in "ab"]
IGNORE_3 = FailureRule("Ignore", exit_codes=(3,))
IGNORE_KILLS = FailureRule("Ignore", exit_codes=(137,))
FAIL_BUT_3 = FailureRule("FailJob", exit_codes=(3,), other_codes=True)
COUNT_3 = FailureRule("Count", exit_codes=(3,))
BY_REASON = FailureRule("FailJob", reasons=("NodeLost",))


class Service:
    """A service whose agents send heartbeats, and whose first member fails."""

    def __init__(self, policy: Policy, *, live: bool = False, boot: int = 1) -> None:
        self.state: RegistryState = initial_state(term=1, boot=boot, wall_offset=EPOCH)
        self.live = live
        self.policy = policy

    def expect(self, now: float = NOW, **facts: Any) -> Service:
        told = Expectation(("a", "b"), policy=self.policy, **facts)
        on_expectation(self.state, parse_expectation(encode(told)), now)
        return self

    def register(self, now: float = NOW, **facts: Any) -> Service:
        for member in MEMBERS:
            message = hello(member, live=self.live, ready=self.live, **facts)
            on_hello(self.state, {"files": None, "stopped": "", **message}, now)
        decide(self.state, now)
        return self

    def fail(self, now: float, exit_code: int = 1, **facts: Any) -> ServiceState:
        current = self.state.current
        assert current is not None
        failure = Failure(EPOCH + now, "rank 0: boom", exit_code=exit_code, **facts)
        message = {"type": "exited", "membership": str(current.id), "failure": encode(failure)}
        worker = current.members[0].worker
        on_message(self.state, worker, {**message, "live": self.live}, now)
        for member in MEMBERS:
            on_heartbeat(self.state, member.worker, now + 2)
        decide(self.state, now + 2)
        if self.live:
            on_message(self.state, "a", {"type": "ready"}, now + 3)
            on_message(self.state, "b", {"type": "ready"}, now + 3)
        decide(self.state, now + 400)  # after every backoff
        return self.state.phase


@pytest.mark.parametrize("live", [False, True], ids=["restart", "live"])
@pytest.mark.parametrize(
    ("rules", "exit_code", "phase", "failures"),
    [
        pytest.param((), 3, ServiceState.RUNNING, 1, id="no_rule"),
        pytest.param((IGNORE_3,), 3, ServiceState.RUNNING, 0, id="ignored"),
        pytest.param((IGNORE_3,), 4, ServiceState.RUNNING, 1, id="another_code"),
        pytest.param((IGNORE_KILLS,), -9, ServiceState.RUNNING, 0, id="signal_as_in_a_shell"),
        pytest.param((FAIL_BUT_3,), 3, ServiceState.RUNNING, 1, id="not_in"),
        pytest.param((FAIL_BUT_3,), 4, ServiceState.FAILED, 0, id="fails"),
        pytest.param((COUNT_3, IGNORE_3), 3, ServiceState.RUNNING, 1, id="the_first_rule"),
        pytest.param((BY_REASON,), 3, ServiceState.RUNNING, 1, id="about_pods"),
    ],
)
def test_the_first_rule_that_matches_decides(
    rules: tuple[FailureRule, ...],
    exit_code: int,
    phase: ServiceState,
    failures: int,
    *,
    live: bool,
) -> None:
    policy = dataclasses.replace(BASE, rules=rules)
    service = Service(policy, live=live).expect().register()
    assert service.fail(NOW + 1, exit_code) is phase
    report = build_report(service.state, 1)
    assert report.failures == failures
    told = [(each.worker, each.at) for each in report.process_failures]
    assert told == [("a", int(EPOCH + NOW + 3))] * failures
    if phase is ServiceState.FAILED:
        assert report.reason == "rank 0: boom (failurePolicy.rules: FailJob)"


def test_a_process_that_fails_because_another_one_did_is_no_failure_of_its_node() -> None:
    service = Service(BASE).expect().register()
    service.fail(NOW + 1, secondary=True)
    report = build_report(service.state, 1)
    assert (report.failures, report.process_failures) == (1, ())
    assert report.failure is not None
    assert report.failure.worker == "a"


def test_failures_that_a_rule_ignores_never_use_up_the_budget() -> None:
    service = Service(dataclasses.replace(BASE, rules=(IGNORE_3,))).expect().register()
    for n in range(10):
        assert service.fail(NOW + 1000 * n, 3) is ServiceState.RUNNING


@pytest.mark.parametrize("live", [False, True], ids=["restart", "live"])
@pytest.mark.parametrize(
    ("window", "seconds_between", "phase"),
    [
        pytest.param(None, 1000, ServiceState.FAILED, id="of_the_whole_job"),
        pytest.param(5000.0, 1000, ServiceState.FAILED, id="within_the_window"),
        pytest.param(2000.0, 1000, ServiceState.RUNNING, id="the_first_is_older"),
    ],
)
def test_the_budget_counts_failures_within_the_window(
    window: float | None, seconds_between: int, phase: ServiceState, *, live: bool
) -> None:
    """Two failures are allowed; the third fails the job."""
    service = Service(dataclasses.replace(BASE, window=window), live=live).expect().register()
    phases = [service.fail(NOW + n * seconds_between) for n in range(1, 4)]
    assert phases == [ServiceState.RUNNING, ServiceState.RUNNING, phase]
    if window and phase is ServiceState.FAILED:
        assert "failure 3 within 5000 s, 2 restarts allowed" in service.state.reason


@pytest.mark.parametrize("source", ["agents", "operator"])
def test_a_restarted_service_knows_the_failures_within_the_window(source: str) -> None:
    policy = dataclasses.replace(BASE, window=5000.0)
    old = Service(policy).expect().register()
    for n in (1, 2):
        old.fail(NOW + 1000 * n)
    report = build_report(old.state, 1)
    assert len(report.failure_times) == 2

    new = Service(policy, boot=2)
    if source == "operator":
        new.expect(NOW + 3000, failures=2, failure_times=report.failure_times)
        new.register(NOW + 3000)
    else:
        new.expect(NOW + 3000)
        assert decode(Membership, encode(report.membership)) == report.membership
        new.register(NOW + 3000, membership=encode(report.membership), running=True)
    assert new.fail(NOW + 3500) is ServiceState.FAILED


def test_both_sides_of_a_merge_know_the_same_failures() -> None:
    assert merge_times((1, 2, 2), (2, 3)) == (1, 2, 2, 3)
    assert len(merge_times(range(80), range(100, 180))) == 100
