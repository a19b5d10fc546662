"""The losses and failures of a running membership, assessed alike in all modes.

May not: form a membership, read a clock, open anything, keep state, import asyncio.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from ddpjob_agent.membership.forming import is_lost, suspects
from ddpjob_agent.membership.state import Action, Decision
from ddpjob_protocol.failures.failure_rules import RuleAction, action_of
from ddpjob_protocol.text import plural, some

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddpjob_agent.membership.state import MembershipState, WorkerState
    from ddpjob_protocol.messages.agent import Failure
    from ddpjob_protocol.messages.control import Policy

MAX_NAMES = 3  # workers in a reason; the others are counted
HEALTHY_SECONDS = 30.0  # a membership that ran for as long was healthy


def lost_of(view: MembershipState, members: Sequence[WorkerState], now: float) -> list[str]:
    """Return the names of the members that count as lost now."""
    return [worker.member.worker for worker in members if is_lost(view, worker, now)]


def delay_for_suspects(
    view: MembershipState, members: Sequence[WorkerState], lost: Sequence[str], now: float
) -> Decision | None:
    """Return the decision to wait if further members may be lost, too."""
    unsure = suspects(view, members, now) if lost else []
    if not unsure:
        return None
    reason = f"lost {', '.join(lost)}; checking whether other workers are alive"
    again = min(worker.lost_at(view.policy) for worker in unsure)
    silent = tuple(worker.member.worker for worker in unsure if worker.closed_at is None)
    return Decision(Action.KEEP, reason, again, awaited=silent)


def delay_for_messages(
    view: MembershipState,
    members: Sequence[WorkerState],
    failed: Sequence[WorkerState],
    seconds: float,
    now: float,
) -> Decision | None:
    """Return the decision to wait until all members sent a message after the first exit.

    A message counts if it is at least `seconds` later than that exit.
    """
    first = min(worker.exit_at for worker in failed if worker.exit_at is not None)
    silent = [worker for worker in members if worker.last_seen < first + seconds]
    if not silent:
        return None
    names = tuple(worker.member.worker for worker in silent)
    lost_at = min(worker.lost_at(view.policy) for worker in silent)
    reason = f"a command failed; waiting for a message from {some(names, MAX_NAMES)}"
    since = first + seconds
    again = since if now < since else max(lost_at, now)
    return Decision(Action.KEEP, reason, again, awaited=names, awaited_since=since)


def failures_in_a_row(view: MembershipState, failed: Sequence[WorkerState], now: float) -> int:
    """Return the number of failures in a row with this one; 0 if it ended a healthy membership."""
    exits = [worker.exit_at for worker in failed if worker.exit_at is not None]
    exits += [now] if view.hang is not None else []
    if exits and min(exits) - view.formed_at >= HEALTHY_SECONDS:
        return 0
    return view.failures_in_a_row + 1


def root_failure_of(failed: Sequence[WorkerState]) -> Failure | None:
    """Return the failure that caused the others, with its worker, if one is known."""
    failures = [
        dataclasses.replace(row.failure, worker=row.failure.worker or row.member.worker)
        for row in failed
        if row.failure is not None
    ]
    return min(failures, key=lambda f: (f.secondary, f.at), default=None)


def fail_job(failure: Failure, count: int, policy: Policy) -> Decision | None:
    """Return the decision to fail the job if failure number `count` is one too many.

    A rule may decide so, too. A failure that is ignored has number 0.
    """
    reason = failure.summary
    if _action(failure, policy) == RuleAction.FAIL_JOB:
        reason = f"{failure.summary} (failurePolicy.rules: FailJob)"
    elif not failure.permanent:
        if count <= policy.max_failures:
            return None
        allowed = plural(policy.max_failures, "restart")
        within = "" if policy.window is None else f" within {policy.window:g} s"
        reason = f"{failure.summary} (failure {count}{within}, {allowed} allowed)"
    return Decision(Action.FAIL, reason, failure=failure)


def is_ignored(failure: Failure | None, policy: Policy) -> bool:
    """Return whether a rule spares the budget this failure."""
    return failure is not None and _action(failure, policy) == RuleAction.IGNORE


def _action(failure: Failure, policy: Policy) -> str:
    return action_of(policy.rules, failure.exit_code, failure.reason)
