"""The orders of a planned change to the members of the old membership."""

from __future__ import annotations

import pytest

from agent.membership.views import NOW, hello, names, order_for
from ddpjob_agent.registry.decisions import decide
from ddpjob_agent.registry.messages import on_message
from ddpjob_agent.registry.registration import (
    on_disconnect,
    on_expectation,
    on_heartbeat,
    on_hello,
)
from ddpjob_agent.registry.state.registry_state import initial_state
from ddpjob_protocol.codec import encode
from ddpjob_protocol.messages.control import Expectation, Policy
from ddpjob_protocol.messages.membership import Member


class Job:
    """A registry with workers whose processes accept a stop step."""

    def __init__(self, minimum: int, workers: str = "ab") -> None:
        self.workers = workers
        self.state = initial_state(term=1, boot=1, wall_offset=0.0)
        on_expectation(self.state, Expectation((*workers,), policy=Policy(minimum=minimum)), NOW)
        for name in workers:
            on_hello(self.state, hello(Member(name, f"{name}-first", "127.0.0.1", 1)), NOW)
        decide(self.state, NOW)
        for name in workers:
            on_message(self.state, name, {"type": "stops", "membership": "1.1.1"}, NOW)

    def leaves(self, name: str, *promises: int) -> None:
        on_message(self.state, name, {"type": "bye"}, NOW)
        decide(self.state, NOW)
        assert all(order_for(self.state, each, NOW)["asked"] for each in self.workers)
        for each, step in zip(self.workers, promises, strict=True):
            on_message(self.state, each, {"type": "promise", "step": step}, NOW)
        decide(self.state, NOW)

    def order(self, name: str) -> tuple[str, object]:
        order = order_for(self.state, name, NOW)
        return order["type"], order["last"]


def test_all_receive_the_last_step_of_the_membership_that_ends() -> None:
    job = Job(minimum=1)
    assert (job.order("a"), job.order("b")) == (("run", None), ("run", None))
    job.leaves("b", 7, 8)
    last = {"membership": "1.1.1", "step": 8, "saved": False}
    assert (job.order("a"), job.order("b")) == (("run", last), ("halt", last))


def test_halted_workers_receive_it_too() -> None:
    job = Job(minimum=2)
    job.leaves("b", 7, 8)
    last = {"membership": "1.1.1", "step": 8, "saved": False}
    assert (job.order("a"), job.order("b")) == (("halt", last), ("halt", last))


def test_second_worker_that_leaves_meanwhile_still_does_the_step() -> None:
    job = Job(minimum=1)
    job.leaves("b", 7, 8)
    on_message(job.state, "a", {"type": "bye"}, NOW)
    decide(job.state, NOW)
    assert job.order("a") == ("halt", {"membership": "1.1.1", "step": 8, "saved": False})


def test_it_is_saved_when_all_have_stopped_or_are_gone() -> None:
    job = Job(minimum=1)
    job.leaves("b", 7, 8)
    on_message(job.state, "a", {"type": "stopped", "membership": "1.1.1"}, NOW)
    on_message(job.state, "b", {"type": "stopped", "membership": "1.1.0"}, NOW)
    last = {"membership": "1.1.1", "step": 8}
    assert job.order("a") == ("run", {**last, "saved": False}), "b may be the writer"
    on_message(job.state, "b", {"type": "stopped", "membership": "1.1.1"}, NOW)
    assert job.order("a") == ("run", {**last, "saved": True})


def test_word_that_was_lost_with_a_connection_comes_with_the_next_hello() -> None:
    job = Job(minimum=1)
    job.leaves("b", 7, 8)
    on_message(job.state, "a", {"type": "stopped", "membership": "1.1.1"}, NOW)
    on_disconnect(job.state, "b", NOW)
    back = hello(Member("b", "b-first", "127.0.0.1", 1))
    on_hello(job.state, back, NOW)
    last = {"membership": "1.1.1", "step": 8}
    assert job.order("a") == ("run", {**last, "saved": False})
    on_hello(job.state, {**back, "stopped": "1.1.1"}, NOW)
    assert job.order("a") == ("run", {**last, "saved": True})


def test_a_worker_that_leaves_says_so_to_the_next_service_too() -> None:
    """In a deleted job, and on a drained node, the service may end before the goodbye arrives."""
    state = initial_state(term=2, boot=1, wall_offset=0.0)
    on_expectation(state, Expectation(("a", "b"), policy=Policy(minimum=1)), NOW)
    held = encode(Job(minimum=1).state.current)
    for name, leaving in (("a", False), ("b", True)):
        member = Member(name, f"{name}-first", "127.0.0.1", 1)
        facts = {"membership": held, "running": True, "stops": True, "leaving": leaving}
        on_hello(state, {**hello(member), **facts}, NOW)
    decide(state, NOW)
    for name in "ab":
        assert order_for(state, name, NOW)["asked"]


@pytest.mark.parametrize("way", ["closed", "silent"])
def test_no_worker_waits_for_a_lost_worker_to_save(way: str) -> None:
    job = Job(minimum=1)
    job.leaves("b", 7, 8)
    on_message(job.state, "a", {"type": "stopped", "membership": "1.1.1"}, NOW)
    if way == "closed":
        on_disconnect(job.state, "b", NOW)
    on_heartbeat(job.state, "a", NOW + 9.9)
    now = NOW if way == "closed" else NOW + 10
    last = order_for(job.state, "a", now)["last"]
    assert last == {"membership": "1.1.1", "step": 8, "saved": True}


def test_nobody_does_it_when_one_of_them_is_lost() -> None:
    job = Job(minimum=1)
    job.leaves("b", 7, 8)
    on_disconnect(job.state, "a", NOW)
    decide(job.state, NOW + 1)
    assert job.order("b") == ("halt", None)


def test_no_worker_does_the_last_step_if_one_is_lost_and_others_continue() -> None:
    job = Job(minimum=1, workers="abc")
    job.leaves("c", 7, 8, 8)
    on_disconnect(job.state, "b", NOW)
    decide(job.state, NOW + 1)
    assert (job.order("a"), job.order("c")) == (("run", None), ("halt", None))


def test_word_of_an_earlier_membership_counts_for_nothing() -> None:
    job = Job(minimum=1)
    job.leaves("b", 7, 8)
    on_message(job.state, "a", {"type": "stops", "membership": "1.1.1"}, NOW)
    on_message(job.state, "a", {"type": "bye"}, NOW)
    decide(job.state, NOW)
    assert job.order("a")[0] == "halt", "the service asks no worker for a step"


def test_a_worker_lost_before_gets_no_order_for_a_step_that_the_others_agreed_on() -> None:
    """At L2. Its group is gone: it would wait for ever for the end of a step."""
    state = initial_state(term=1, boot=1, wall_offset=0.0)
    on_expectation(state, Expectation(("a", "b", "c"), policy=Policy(minimum=1)), NOW)
    lost = {}
    for name in "abc":
        lost = hello(Member(name, f"{name}-first", "127.0.0.1", 1), live=True, ready=True)
        on_hello(state, lost, NOW)
    decide(state, NOW)
    on_disconnect(state, "c", NOW)
    decide(state, NOW + 1)
    on_message(state, "b", {"type": "bye"}, NOW)
    decide(state, NOW + 1)
    for name in "ab":
        on_message(state, name, {"type": "promise", "step": 8}, NOW)
    decide(state, NOW + 1)
    assert state.current is not None
    assert (names(state.current), state.current.after) == (["a"], 8)
    on_hello(state, {**lost, "ready": False}, NOW + 1)
    after = {name: order_for(state, name, NOW + 1)["after"] for name in "bc"}
    assert after == {"b": 8, "c": None}
