"""Connected and expected workers: agents register and disconnect, the operator names workers.

The service keeps nothing on disk. After a restart it relearns the membership, and all facts about
it, from the agents that register.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from ddpjob_agent.membership.state import WorkerState
from ddpjob_agent.registry.decisions import mark_overdue
from ddpjob_agent.registry.effects import Effect
from ddpjob_agent.registry.messages import (
    failure_in,
    on_inventory,
    on_progress_report,
    on_steps_done,
    on_stopped,
)
from ddpjob_protocol.codec import DecodeError
from ddpjob_protocol.failures.failure_rules import merge_times
from ddpjob_protocol.messages.control import ServiceState
from ddpjob_protocol.messages.membership import Membership, MembershipId
from ddpjob_protocol.parsers.report_check import check_hello, check_member, check_membership

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ddpjob_agent.registry.state.registry_state import RegistryState
    from ddpjob_protocol.messages.agent import Message
    from ddpjob_protocol.messages.control import Expectation


class SupersededError(Exception):
    """An agent has a membership of a newer service, so no agent would obey this one."""

    def __init__(self, worker: str, held: MembershipId, term: int, boot: int) -> None:
        super().__init__(
            f"{worker} has the membership {held} of a service of a higher term or boot than"
            f" {term}.{boot}, so no agent would obey this one; it ends, to be started as a newer one"
        )


def on_expectation(state: RegistryState, expectation: Expectation, now: float) -> Effect:
    """Set the workers that the operator expects."""
    if expectation == state.view.expectation:
        return Effect.NOTHING
    since = state.view.expected_since if state.view.expectation else now
    state.update(
        expectation=expectation,
        expected_since=since,
        policy=expectation.policy,
        failures=max(state.view.failures, expectation.failures),
    )
    state.failure_times = merge_times(state.failure_times, expectation.failure_times)
    state.workers.on_expectation(expectation, now)
    return Effect.TURN


def on_hello(state: RegistryState, message: Message, now: float) -> str:
    """Register an agent, or register it again; return the worker's name.

    Refuse odd facts; raise DecodeError if the member itself is odd. Raise SupersededError if the
    agent obeys a newer service than this one.
    """
    member = check_member(message["member"])
    message, problems = check_hello(message)
    held = message["membership"]
    held_id = MembershipId.parse(held["id"]) if held else None
    if held_id and held_id[:2] > (state.view.term, state.view.boot):
        raise SupersededError(member.worker, held_id, state.view.term, state.view.boot)
    if held_id and (state.current is None or held_id > state.current.id):
        try:
            _adopt(state, check_membership(held), now)
        except DecodeError as error:
            held_id, problems["membership"] = None, str(error)
    for fact, problem in problems.items():
        state.refuse(member.worker, f"hello.{fact}", problem, now)
    known = state.workers.row_for(member, now)
    current = state.current
    is_current = bool(current and held_id == current.id and current.has(known.member))
    if is_current:
        known = _relearn(state, known, message, now)
    if message["files"]:
        on_inventory(state, member.worker, message["files"], now)
    if message["stopped"]:
        on_stopped(state, member.worker, {"membership": message["stopped"]}, now)
    expectation = state.view.expectation
    if message["live"] and (expectation is None or member.worker in expectation.known):
        state.update(live=True)
    known = dataclasses.replace(
        known,
        last_seen=now,
        closed_at=None,
        host_silent_since=None,
        overdue_at=None,
        ready_at=(known.ready_at or now) if message["ready"] else None,
        finished=is_current and message["finished"],
        leaving=known.leaving or message["leaving"],
        port=message["port"],
        reach=message["reach"],
    )
    state.workers.put(known, expectation, now)
    state.signs.on_hello(member.worker, now)
    return member.worker


def _adopt(state: RegistryState, membership: Membership, now: float) -> None:
    """Relearn a membership that was formed before this service started."""
    state.update(current=membership, running=True, formed_at=now, failures=membership.failures)
    state.failure_times = merge_times(state.failure_times, membership.failure_times)
    state.history.on_membership(membership, state.wall(now))
    state.warnings.on_membership({member.worker for member in membership.members})
    state.stalls.on_membership(membership, None)
    state.signs.on_membership((member.worker for member in membership.members), now)
    state.phase = ServiceState.RUNNING
    state.relearned = True
    policy = state.view.policy
    closed_at = now + policy.heartbeat_deadline - policy.reconnect_grace
    for member in membership.members:
        if not state.knows(member.worker):
            ghost = WorkerState(member, registered_at=now, last_seen=now, closed_at=closed_at)
            state.workers.put(ghost, state.view.expectation, now)


def _relearn(
    state: RegistryState, known: WorkerState, message: Mapping[str, Any], now: float
) -> WorkerState:
    """Take the facts of a member about the current membership; return its new row."""
    assert state.current is not None
    worker = known.member.worker
    failure = failure_in(state, message, now)
    if not message["running"] and state.view.running:
        state.update(running=False, lost=(*state.view.lost, worker))
    if message["steps_done"]:
        on_steps_done(state, worker, message["steps_done"], now)
    for report in message["reports"]:
        on_progress_report(state, worker, report, now)
    return dataclasses.replace(
        known,
        done=message["done"],
        failure=failure,
        exit_at=(known.exit_at or now) if failure else None,
        failed_in=str(state.current.id),
        stops=message["stops"],
    )


def on_heartbeat(state: RegistryState, worker: str, now: float) -> Effect:
    """Record the time of a message from this worker.

    That alone has an effect if the worker was lost or is being ended, or if a decision waits for it.
    """
    before, policy = state.workers.get(worker), state.view.policy
    if before is None:
        return Effect.NOTHING
    state.workers.change(worker, last_seen=now, host_silent_since=None, overdue_at=None)
    state.signs.on_message(worker, now)
    returns = before.lost_at(policy) <= now
    after = dataclasses.replace(before, last_seen=now) if before.unexpected_at else before
    leaves = after.is_being_ended(policy) and not before.is_being_ended(policy)
    return Effect.turn_if(returns or leaves or _was_last_awaited(state, worker, now))


def _was_last_awaited(state: RegistryState, worker: str, now: float) -> bool:
    if worker not in state.awaited or now < state.awaited_since:
        return False
    state.awaited.discard(worker)
    return not state.awaited


def on_silent_hosts(state: RegistryState, silent: Mapping[str, float]) -> Effect:
    """Record since when each silent host has been silent; all others are not."""
    changed = False
    for row in state.workers.rows():
        since = silent.get(row.member.worker)
        if (since is None) != (row.host_silent_since is None):
            changed |= state.workers.change(row.member.worker, host_silent_since=since)
    return Effect.turn_if(changed)


def on_look(state: RegistryState, now: float) -> tuple[Effect, list[str]]:
    """Look for members that do not answer; return the effect, and those to ask for a heartbeat."""
    changed = mark_overdue(state, now)
    return Effect.turn_if(changed), state.signs.to_ask(state.workers.rows(), state.view.policy, now)


def on_disconnect(state: RegistryState, worker: str, now: float) -> None:
    """Record that the connection of this worker closed."""
    state.workers.change(worker, closed_at=now)


def extend_deadlines(state: RegistryState, seconds: float) -> None:
    """Extend all deadlines by the seconds for which this service itself was stalled."""
    state.workers.extend_deadlines(seconds)
    state.stalls.extend_deadlines(seconds)
