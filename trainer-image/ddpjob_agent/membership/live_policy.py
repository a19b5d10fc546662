"""The supervision of a membership in live mode, where processes survive changes.

A loss or failure is one immediate change: the remaining workers continue in memory. The worker
whose command failed backs off, starts again and joins. A planned change waits for the end of a
step.

    running ──(member lost, or its command failed)──► FORM lost, failed
            ──(connections broke, and no member is gone)──► FORM failed: the same members
            ──(a member leaves, or a worker is ready to join)──► `planned_change`

May not: read a clock, open anything, keep state, import asyncio.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from ddpjob_agent.membership.failures import (
    delay_for_messages,
    delay_for_suspects,
    fail_job,
    failures_in_a_row,
    is_ignored,
    lost_of,
    root_failure_of,
)
from ddpjob_agent.membership.forming import (
    backoff_after,
    earliest,
    eligible,
    form,
    members_of,
    next_backoff_end,
    next_loss,
    shortage,
    too_many_losses,
)
from ddpjob_agent.membership.planned_change import plan_change
from ddpjob_agent.membership.state import Action, Decision

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddpjob_agent.membership.state import MembershipState, WorkerState
    from ddpjob_protocol.messages.agent import Failure
    from ddpjob_protocol.messages.membership import Membership

BROKEN_SECONDS = 5.0  # if connections broke and no member is lost in this time, only they failed
HUNG_SECONDS = 2.0
ECHO_SECONDS = 1.0  # a secondary failure waits this time for the report of the root failure


def supervise_live(view: MembershipState, current: Membership, now: float) -> Decision:
    """Return the next action while `current` runs."""
    members, gone = members_of(view, current)
    lost = gone + lost_of(view, members, now)
    wait = delay_for_suspects(view, members, lost, now)
    if wait is not None:
        return wait
    failed = [worker for worker in members if worker.exit_at is not None]
    if lost or failed:
        if not lost and all(each.failure and each.failure.secondary for each in failed):
            wait = delay_for_messages(view, members, failed, ECHO_SECONDS, now)
        return wait or _regroup(view, now, lost, failed)
    if any(worker.done or worker.finished for worker in members):
        return _finish(view, members, now)
    if view.hang is not None:
        hung = [worker for worker in members if worker.member.worker in view.hung]
        return _regroup(view, now, (), hung or members, view.hang)
    if view.broken is not None:
        return _reconnect(view, view.broken, now)
    return plan_change(view, current, members, _present(view, now), now)


def _finish(view: MembershipState, members: Sequence[WorkerState], now: float) -> Decision:
    """Decide once a worker has finished: only a loss or a failure causes a change now."""
    if all(worker.done for worker in members):
        return Decision(Action.COMPLETE, "every worker ended with exit code 0")
    again = earliest(next_loss(view, now), next_backoff_end(view, now))
    action = Action.KEEP if view.asked_at is None else Action.CANCEL_STOP
    return Decision(action, "some workers have finished", again)


def _reconnect(view: MembershipState, broken: Failure, now: float) -> Decision:
    """Decide after connections broke: form the same membership again if no member is gone."""
    at = view.broken_at + BROKEN_SECONDS
    if now >= at:
        return _regroup(view, now, (), (), broken)
    reason = "connections broke; waiting for the members' state"
    return Decision(Action.KEEP, reason, earliest(next_loss(view, now), at))


def _regroup(
    view: MembershipState,
    now: float,
    lost: Sequence[str],
    failed: Sequence[WorkerState],
    broken: Failure | None = None,
) -> Decision:
    """Form a membership without the lost workers and the workers that must start again."""
    assert view.current is not None
    policy = view.policy
    too_many = too_many_losses(view, lost)
    if too_many is not None:
        return too_many
    # One membership counts one failure, whatever the number of its processes that failed.
    current = str(view.current.id)  # for a worker that failed before its first membership
    counts = not lost and any((w.failed_in or current) != view.counted_in for w in failed)
    counts = counts or broken is not None
    failure = root_failure_of(failed) or broken
    ignored = is_ignored(failure, policy)
    costs = counts and not ignored
    end = fail_job(failure, view.spent + 1 if costs else 0, policy) if failure is not None else None
    if end is not None:
        return end
    row = failures_in_a_row(view, failed, now) if counts else view.failures_in_a_row
    names = tuple(worker.member.worker for worker in failed)
    pause = backoff_after(row, policy)
    if broken is not None and failed:  # they hang: their processes have to be ended first
        pause = max(pause, HUNG_SECONDS)
    facts = Decision(
        Action.HALT,
        "",
        lost=tuple(lost),
        failure=None if lost else failure,
        failed=names,
        rest_until=now if lost else now + pause,
        counts=counts,
        ignored=ignored,
        failures_in_a_row=row,
    )
    view = dataclasses.replace(
        view,
        failures=view.failures + costs,
        root_failure=facts.failure,
        workers=tuple(w for w in view.workers if w.member.worker not in names),
    )
    present = _present(view, now)
    short = shortage(policy, present, "left")
    if short is not None:
        what = f"lost {', '.join(lost)}" if lost else failure.summary if failure else "a failure"
        reason = f"{what}: {short}"
        again = earliest(next_loss(view, now), facts.rest_until)
        return dataclasses.replace(facts, reason=reason, again_at=again)
    formed = form(view, present, "the others continue", failed=() if lost else names)
    return dataclasses.replace(
        facts, action=formed.action, reason=formed.reason, membership=formed.membership
    )


def _present(view: MembershipState, now: float) -> list[WorkerState]:
    """Return the workers that can join the next membership at once: members and ready workers."""
    assert view.current is not None
    inside = {(member.worker, member.incarnation) for member in view.current.members}
    return [
        worker
        for worker in eligible(view, now)
        if (worker.member.worker, worker.member.incarnation) in inside
        or worker.ready_at is not None
    ]
