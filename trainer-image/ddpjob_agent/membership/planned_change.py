"""A planned change: it happens at the end of a step that all processes agree on.

The service asks each process for the last step that it may begin without a further order. The
new membership names the last step of the old one (`Membership.after`). No step is interrupted.
In live mode the processes change in memory after that step. In snapshot mode they save it, and
all start again from it.

    running ──(a member leaves, or a worker may join)──► ASK_STOP_STEP
    asked   ──(all promised a step, or PROMISE_SECONDS are over)──► FORM left, joined; HALT

May not: read a clock, open anything, keep state, import asyncio.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from ddpjob_agent.membership.forming import (
    earliest,
    form,
    leaves,
    next_backoff_end,
    next_loss,
    shortage,
)
from ddpjob_agent.membership.joining import delay_for_joiners, joiners_of
from ddpjob_agent.membership.state import Action, Decision

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddpjob_agent.membership.state import MembershipState, WorkerState
    from ddpjob_protocol.messages.membership import Membership

PROMISE_SECONDS = 5.0  # seconds; a process answers at once, whatever its main thread does


def plan_change(
    view: MembershipState,
    current: Membership,
    members: Sequence[WorkerState],
    present: Sequence[WorkerState],
    now: float,
) -> Decision:
    """Return the next action towards a change; `present` are the workers that could be in it."""
    leaving = [worker for worker in members if leaves(view, worker)]
    joiners = joiners_of(current, present)
    wait = delay_for_joiners(view, joiners, present, now)
    if wait is not None and not leaving:
        if view.asked_at is not None:
            return Decision(Action.CANCEL_STOP, wait.reason)
        return dataclasses.replace(
            wait, again_at=earliest(wait.again_at, next_backoff_end(view, now))
        )
    if wait is not None:
        later = {worker.member.worker for worker in joiners}
        present = [worker for worker in present if worker.member.worker not in later]
    if view.asked_at is None:
        return Decision(Action.ASK_STOP_STEP, "running; asking for the step to change at")
    promises = [worker.promise for worker in members]
    known = [promise for promise in promises if promise is not None]
    until = view.asked_at + PROMISE_SECONDS
    if len(known) < len(promises) and now < until:
        reason = "running; waiting for the step at which to change"
        return Decision(Action.KEEP, reason, earliest(until, next_loss(view, now)))
    after = max(known) if len(known) == len(promises) else None
    short = shortage(view.policy, present, "left")
    if short is not None:
        names = ", ".join(worker.member.worker for worker in leaving)
        reason = f"{names} left: {short}"
        return Decision(Action.HALT, reason, next_loss(view, now), after=after)
    return form(view, present, "a planned change", after)
