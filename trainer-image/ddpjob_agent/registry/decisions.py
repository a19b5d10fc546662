"""The decisions of the service: apply the membership policy until nothing changes."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from ddpjob_agent.membership.last_step import LastStep
from ddpjob_agent.membership.policy import decide_membership
from ddpjob_agent.membership.state import Action
from ddpjob_agent.registry.state.hang_restart import restart_if_hung
from ddpjob_protocol.failures.failure_rules import MAX_TIMES, FailureReason
from ddpjob_protocol.messages.control import ProcessFailure, ServiceState
from ddpjob_protocol.messages.membership import Cause

if TYPE_CHECKING:
    from ddpjob_agent.membership.state import Decision, MembershipState
    from ddpjob_agent.registry.state.registry_state import RegistryState
    from ddpjob_protocol.messages.control import Policy
    from ddpjob_protocol.messages.membership import Membership


def decide(state: RegistryState, now: float) -> float | None:
    """Apply decisions until nothing changes; return when to decide again."""
    mark_overdue(state, now)
    again_at = _decide(state, now)
    state.silent = frozenset(
        w.member.worker for w in state.workers.rows() if w.lost_at(state.view.policy) <= now
    )
    if state.files.update(state.view, state.workers, now, state.wall(now)):
        state.update(kept_at=now)
        again_at = now  # joiners may have waited for it
    _detect_stall(state, now)
    return _decide(state, now) if restart_if_hung(state, now) else again_at


def mark_overdue(state: RegistryState, now: float) -> bool:
    """Record when each member that does not answer counts as lost; return whether that differs."""
    rows, overdue = state.workers.rows(), {}
    if _step_is_due(state):
        overdue = state.signs.overdue(rows, state.view.policy, now)
    changed = [
        state.workers.change(name, overdue_at=overdue.get(name))
        for row in rows
        if row.overdue_at != overdue.get(name := row.member.worker)
    ]
    return any(changed)


def _step_is_due(state: RegistryState) -> bool:
    """Return whether the processes run and have steps left."""
    return _runs(state) and not _is_ending(state)


def _runs(state: RegistryState) -> bool:
    return state.phase is ServiceState.RUNNING and state.view.running


def _is_ending(state: RegistryState) -> bool:
    """Return whether all steps are done, or a command has ended."""
    step, total = state.history.step, state.history.total_steps
    all_steps = step is not None and total is not None and step >= total
    return all_steps or any(worker.done or worker.finished for worker in state.workers.rows())


def _detect_stall(state: RegistryState, now: float) -> None:
    """Detect a hang: before the end by the steps, then by the commands that have not ended."""
    policy, history = state.view.policy, state.history
    last = history.step, history.step_at
    if _runs(state) and _is_ending(state) and last[0] is not None and last[1] is not None:
        assert state.current is not None
        done = {row.member.worker for row in state.workers.rows() if row.done}
        members = [member.worker for member in state.current.members]
        ended, left = (
            tuple(name for name in members if (name in done) is is_done)
            for is_done in (True, False)
        )
        state.stalls.detect_end(policy, now, (last[0], last[1]), ended=ended, left=left)
        return
    changing = state.view.asked_at is not None
    state.stalls.detect(policy, now, due=_step_is_due(state), changing=changing)


def _decide(state: RegistryState, now: float) -> float | None:
    while not state.is_over:
        state.update(
            workers=state.workers.rows(),
            policy=_policy(state.view),
            in_window=state.failures_in_window(now),
            snapshot_step=state.history.snapshot_step,
            repeated_steps=state.history.repeated_steps,
        )
        decision = decide_membership(state.view, now)
        state.reason = decision.reason
        if decision.action is Action.KEEP:
            state.awaited = set(decision.awaited)
            state.awaited_since = decision.awaited_since
            return decision.again_at
        _apply(state, decision, now)
    return None


def _policy(view: MembershipState) -> Policy:
    """Return the job's policy with the deadlines of its mode and of a broken membership."""
    policy = view.expectation.policy if view.expectation else view.policy
    if view.live:
        policy = dataclasses.replace(
            policy,
            heartbeat_deadline=min(policy.heartbeat_deadline, policy.live_deadline),
            host_deadline=min(policy.host_deadline, policy.live_host_deadline),
            process_deadline=min(policy.process_deadline, policy.live_process_deadline),
        )
    if view.broken:  # then a closed connection means a lost worker
        policy = dataclasses.replace(policy, reconnect_grace=0.0)
    return policy


def _apply(state: RegistryState, decision: Decision, now: float) -> None:
    if decision.action in (Action.FORM, Action.HALT, Action.BACKOFF):
        state.update(hang=None, hung=())
        state.hang.reset()
    if decision.failure:
        state.failure = decision.failure
    if decision.counts:
        _count_failure(state, decision, now)
    for worker in decision.failed:
        state.workers.back_off(worker, decision.rest_until)
    if decision.action is Action.FORM:
        assert decision.membership is not None
        _start_membership(state, decision.membership, now)
    elif decision.action is Action.HALT:
        state.phase = ServiceState.WAITING
        _agree_last_step(state, decision.after, broken=bool(decision.lost or decision.failure))
        state.update(
            running=False, lost=decision.lost, root_failure=decision.failure, asked_at=None
        )
    elif decision.action in (Action.ASK_STOP_STEP, Action.CANCEL_STOP):
        state.update(asked_at=now if decision.action is Action.ASK_STOP_STEP else None)
        state.workers.change_all(promise=None)
    elif decision.action is Action.BACKOFF:
        assert decision.again_at is not None
        state.phase = ServiceState.WAITING
        state.update(
            running=False,
            root_failure=decision.failure,
            resume_at=decision.again_at,
        )
    else:
        complete = decision.action is Action.COMPLETE
        state.phase = ServiceState.COMPLETE if complete else ServiceState.FAILED
        state.update(running=False)


def _count_failure(state: RegistryState, decision: Decision, now: float) -> None:
    counted_in = str(state.current.id) if state.current else ""
    state.update(failures_in_a_row=decision.failures_in_a_row, counted_in=counted_in)
    if not decision.ignored:
        state.update(failures=state.view.failures + 1)
        at, failure = int(state.wall(now)), decision.failure
        state.failure_times = (*state.failure_times, at)[-MAX_TIMES:]
        if failure is not None and not failure.secondary and failure.reason != FailureReason.HANG:
            news = ProcessFailure(failure.worker, at)
            state.process_failures = (*state.process_failures, news)[-MAX_TIMES:]


def _agree_last_step(state: RegistryState, after: int | None, *, broken: bool) -> None:
    """Keep the last step of the ending membership; forget it if the membership is broken.

    Outside live mode, processes may still do the last step of an earlier membership.
    """
    if after is not None and state.current is not None:
        state.last_step = LastStep(state.current, after)
    elif broken or state.view.live:
        state.last_step = None


def _start_membership(state: RegistryState, membership: Membership, now: float) -> None:
    membership = dataclasses.replace(membership, failure_times=state.failure_times)
    state.phase = ServiceState.RUNNING
    broken = membership.cause in (Cause.LOST, Cause.FAILED)
    _agree_last_step(state, membership.after, broken=broken)
    state.update(
        current=membership, running=True, formed_at=now, saved_at=None, kept_at=None,
        lost=(), root_failure=None, resume_at=0.0, broken=None, asked_at=None,
    )  # fmt: skip
    state.history.on_membership(membership, state.wall(now))
    state.warnings.on_membership({member.worker for member in membership.members})
    state.signs.on_membership((member.worker for member in membership.members), now)
    waits = state.view.live and membership.after is not None
    state.stalls.on_membership(membership, now, waits_for_last=waits)
    state.relearned = False
    state.workers.on_membership(state.view.policy, now)
