"""Planned changes at L1: asked for and agreed on."""

from __future__ import annotations

from typing import Any

from agent.membership.views import NOW, membership, names, running, worker
from ddpjob_agent.membership.policy import decide_membership
from ddpjob_agent.membership.state import Action, Decision, WorkerState
from ddpjob_protocol.messages.membership import Cause

SAVED = {"snapshot_step": 40, "saved_at": NOW}


def decide(*workers: WorkerState, **changes: Any) -> Decision:
    return decide_membership(running(membership("a", "b"), *workers, **changes), NOW)


def stops(name: str, **changes: Any) -> WorkerState:
    return worker(name, stops=True, **changes)


def test_a_change_waits_for_a_leaving_worker_if_all_accept_a_stop_step() -> None:
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
