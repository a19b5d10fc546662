"""Planned changes at L1: asked for, agreed on, told to those who were in the old membership."""

from __future__ import annotations

from typing import Any

import pytest

from agent.membership.views import NOW, hello, membership, names, running, worker
from ddpjob_agent.membership.policy import decide_membership
from ddpjob_agent.membership.state import Action, Decision, WorkerState
from ddpjob_agent.service.registry import Registry
from ddpjob_protocol.control import Expectation, Policy
from ddpjob_protocol.membership import Cause, Member

SAVED = {"snapshot_step": 40, "saved_at": NOW}


def decide(*workers: WorkerState, **changes: Any) -> Decision:
    return decide_membership(running(membership("a", "b"), *workers, **changes), NOW)


def stops(name: str, **changes: Any) -> WorkerState:
    return worker(name, stops=True, **changes)


def test_who_leaves_is_waited_for_if_all_can_be_told_when_to_stop() -> None:
    assert decide(stops("a"), stops("b", leaving=True)).action is Action.ASK_STOP_STEP
    decision = decide(stops("a", promise=7), stops("b", leaving=True, promise=8), asked_at=NOW)
    assert decision.membership is not None
    assert (names(decision.membership), decision.membership.after) == (["a"], 8)
    assert decision.membership.cause is Cause.LEFT


def test_otherwise_the_change_is_at_once() -> None:
    decision = decide(worker("a"), stops("b", leaving=True))
    assert decision.membership is not None
    assert decision.membership.after is None


def test_joiner_is_asked_for_when_the_policy_lets_it_in() -> None:
    joiner = worker("c", registered_at=NOW - 9)
    assert decide(stops("a"), stops("b"), joiner, snapshot_step=40).action is Action.KEEP
    assert decide(stops("a"), stops("b"), joiner, **SAVED).action is Action.ASK_STOP_STEP


def test_loss_ends_the_waiting() -> None:
    decision = decide(stops("a", promise=7), stops("b", closed_at=NOW - 9, promise=7), asked_at=NOW)
    assert decision.membership is not None
    assert (decision.membership.cause, decision.membership.after) == (Cause.LOST, None)


# --- what the workers are told ---------------------------------------------------------------------


class Job:
    """Workers whose processes can be told when to stop, in a registry."""

    def __init__(self, minimum: int, workers: str = "ab") -> None:
        self.workers = workers
        self.registry = Registry(term=1, boot=1, wall_offset=0.0)
        self.registry.on_expectation(Expectation((*workers,), policy=Policy(minimum=minimum)), NOW)
        for name in workers:
            self.registry.on_hello(hello(Member(name, f"{name}-first", "127.0.0.1", 1)), NOW)
        self.registry.decide(NOW)
        for name in workers:
            self.registry.on_stops(name, {"membership": "1.1.1"})

    def leaves(self, name: str, *promises: int) -> None:
        self.registry.on_left(name)
        self.registry.decide(NOW)
        assert all(self.registry.order_for(each, NOW)["asked"] for each in self.workers)
        for each, step in zip(self.workers, promises, strict=True):
            self.registry.on_promise(each, step)
        self.registry.decide(NOW)

    def order(self, name: str) -> tuple[str, object]:
        order = self.registry.order_for(name, NOW)
        return order["type"], order["last"]


def test_all_are_told_the_last_step_of_the_membership_that_ends() -> None:
    job = Job(minimum=1)
    assert (job.order("a"), job.order("b")) == (("run", None), ("run", None))
    job.leaves("b", 7, 8)
    last = {"membership": "1.1.1", "step": 8, "saved": False}
    assert (job.order("a"), job.order("b")) == (("run", last), ("halt", last))


def test_so_are_those_who_halt() -> None:
    job = Job(minimum=2)
    job.leaves("b", 7, 8)
    last = {"membership": "1.1.1", "step": 8, "saved": False}
    assert (job.order("a"), job.order("b")) == (("halt", last), ("halt", last))


def test_second_worker_that_leaves_meanwhile_still_does_the_step() -> None:
    job = Job(minimum=1)
    job.leaves("b", 7, 8)
    job.registry.on_left("a")
    job.registry.decide(NOW)
    assert job.order("a") == ("halt", {"membership": "1.1.1", "step": 8, "saved": False})


def test_it_is_saved_when_all_have_stopped_or_are_gone() -> None:
    job = Job(minimum=1)
    job.leaves("b", 7, 8)
    job.registry.on_stopped("a", {"membership": "1.1.1"})
    job.registry.on_stopped("b", {"membership": "1.1.0"})
    last = {"membership": "1.1.1", "step": 8}
    assert job.order("a") == ("run", {**last, "saved": False}), "b may be the one who writes"
    job.registry.on_stopped("b", {"membership": "1.1.1"})
    assert job.order("a") == ("run", {**last, "saved": True})


def test_word_that_was_lost_with_a_connection_comes_with_the_next_hello() -> None:
    job = Job(minimum=1)
    job.leaves("b", 7, 8)
    job.registry.on_stopped("a", {"membership": "1.1.1"})
    job.registry.on_disconnect("b", NOW)
    back = hello(Member("b", "b-first", "127.0.0.1", 1))
    job.registry.on_hello(back, NOW)
    last = {"membership": "1.1.1", "step": 8}
    assert job.order("a") == ("run", {**last, "saved": False})
    job.registry.on_hello({**back, "stopped": "1.1.1"}, NOW)
    assert job.order("a") == ("run", {**last, "saved": True})


@pytest.mark.parametrize("way", ["closed", "silent"])
def test_nobody_waits_for_who_is_gone_to_save_it(way: str) -> None:
    job = Job(minimum=1)
    job.leaves("b", 7, 8)
    job.registry.on_stopped("a", {"membership": "1.1.1"})
    if way == "closed":
        job.registry.on_disconnect("b", NOW)
    job.registry.on_heartbeat("a", NOW + 9.9)
    now = NOW if way == "closed" else NOW + 10
    last = job.registry.order_for("a", now)["last"]
    assert last == {"membership": "1.1.1", "step": 8, "saved": True}


def test_nobody_does_it_when_one_of_them_is_lost() -> None:
    job = Job(minimum=1)
    job.leaves("b", 7, 8)
    job.registry.on_disconnect("a", NOW)
    job.registry.decide(NOW + 1)
    assert job.order("b") == ("halt", None)


def test_nobody_does_it_when_one_is_lost_and_others_go_on() -> None:
    job = Job(minimum=1, workers="abc")
    job.leaves("c", 7, 8, 8)
    job.registry.on_disconnect("b", NOW)
    job.registry.decide(NOW + 1)
    assert (job.order("a"), job.order("c")) == (("run", None), ("halt", None))


def test_word_of_an_earlier_membership_counts_for_nothing() -> None:
    job = Job(minimum=1)
    job.leaves("b", 7, 8)
    job.registry.on_stops("a", {"membership": "1.1.1"})
    job.registry.on_left("a")
    job.registry.decide(NOW)
    assert job.order("a")[0] == "halt", "nobody is asked for a step"


def test_who_was_lost_before_is_not_told_to_do_a_step_that_the_others_agreed_on() -> None:
    """At L2. Its group is gone: it would wait for ever for the end of a step."""
    registry = Registry(term=1, boot=1, wall_offset=0.0)
    registry.on_expectation(Expectation(("a", "b", "c"), policy=Policy(minimum=1)), NOW)
    lost = {}
    for name in "abc":
        lost = hello(Member(name, f"{name}-first", "127.0.0.1", 1), live=True, ready=True)
        registry.on_hello(lost, NOW)
    registry.decide(NOW)
    registry.on_disconnect("c", NOW)
    registry.decide(NOW + 1)
    registry.on_left("b")
    registry.decide(NOW + 1)
    for name in "ab":
        registry.on_promise(name, 8)
    registry.decide(NOW + 1)
    assert registry.current is not None
    assert (names(registry.current), registry.current.after) == (["a"], 8)
    registry.on_hello({**lost, "ready": False}, NOW + 1)
    after = {name: registry.order_for(name, NOW + 1)["after"] for name in "bc"}
    assert after == {"b": 8, "c": None}
