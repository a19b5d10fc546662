"""The membership that trains now, and why: the service's policy as one pure function.

Theory of operation. The service keeps a table of registered workers and asks
`decide_membership` after every event, and again at `Decision.again_at`. The answer follows from
the arguments alone; the time is one of them. A membership is never edited. Each change forms a
new one, with one cause.

    no membership ──(all expected registered, or startupWait is over)──► FORM started
    running ──(member lost)──► FORM lost            ──(below the minimum)──► HALT
            ──(member leaves)──► FORM left; in snapshot mode after an agreed step
            ──(command failed; all members alive)──► BACKOFF ──(time is up)──► FORM failed
            ──(joiner, when joinPolicy admits it)──► FORM joined
            ──(all commands ended with 0)──► COMPLETE
    halted  ──(enough workers again)──► FORM

An exit counts as a failure of the application only after every member has sent a message
`CONFIRM_SECONDS` later: survivors of a lost node fail within milliseconds of the loss. The first
failure after health restarts at once; the next ones in a row back off.
`planned_change` agrees on the step after which a membership of snapshot mode ends.

This policy is for restart mode and snapshot mode, where every process starts again with every
membership. In live mode processes survive a change, and `live_policy` supervises.

May not: read a clock, open anything, keep state, import asyncio.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddpjob_agent.membership.failures import (
    MAX_NAMES,
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
    leaves,
    members_of,
    next_backoff_end,
    next_loss,
    shortage,
    too_many_losses,
)
from ddpjob_agent.membership.joining import delay_for_joiners, joiners_of
from ddpjob_agent.membership.live_policy import supervise_live
from ddpjob_agent.membership.planned_change import plan_change
from ddpjob_agent.membership.state import Action, Decision
from ddpjob_protocol.text import some

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddpjob_agent.membership.state import MembershipState, WorkerState
    from ddpjob_protocol.messages.membership import Membership

CONFIRM_SECONDS = 0.5
TOGETHER_SECONDS = 1.0  # commands that failed together start together


def decide_membership(view: MembershipState, now: float) -> Decision:
    """Return the next action for this state at `now`."""
    if view.expectation is None:
        return Decision(Action.KEEP, "waiting for the operator's list of workers")
    if view.current is None or not view.running:
        return _decide_first(view, now)
    if view.live:
        return supervise_live(view, view.current, now)
    return _supervise(view, view.current, now)


# --- no membership is running -------------------------------------------------------------------


def _decide_first(view: MembershipState, now: float) -> Decision:
    assert view.expectation is not None
    policy, present = view.policy, eligible(view, now)
    here = {worker.member.worker for worker in present}
    missing = [name for name in view.expectation.workers if name not in here]
    short = shortage(policy, present, "here")
    if short is not None:
        again = earliest(next_loss(view, now), next_backoff_end(view, now))
        return Decision(Action.KEEP, short + _waiting_for(missing), again)
    if now < view.resume_at:
        what = view.root_failure.summary if view.root_failure else "a worker failed"
        return Decision(Action.KEEP, f"{what}; backing off", view.resume_at)
    rest = next_backoff_end(view, now)
    if rest is not None and rest - now <= TOGETHER_SECONDS:
        return Decision(Action.KEEP, "waiting for workers that start again", rest)
    if missing and view.root_failure is None:
        newest = max(worker.registered_at for worker in present)
        ready_at = newest + policy.settle
        if view.current is None:
            ready_at = max(ready_at, view.expected_since + policy.startup_wait)
        if now < ready_at:
            here_now = "1 worker is" if len(present) == 1 else f"{len(present)} workers are"
            reason = f"{here_now} here" + _waiting_for(missing)
            return Decision(Action.KEEP, reason, earliest(ready_at, next_loss(view, now)))
    return form(view, present, "enough workers are here")


def _waiting_for(missing: Sequence[str]) -> str:
    return f"; waiting for {some(missing, MAX_NAMES)}" if missing else ""


# --- a membership is running --------------------------------------------------------------------


def _supervise(view: MembershipState, current: Membership, now: float) -> Decision:
    members, gone = members_of(view, current)
    lost = gone + lost_of(view, members, now)
    leaving = [w.member.worker for w in members if leaves(view, w)]
    wait = delay_for_suspects(view, members, lost, now)
    if wait is not None:
        return wait
    stops = members and all(worker.stops for worker in members)
    if lost or (leaving and not stops):
        return _shrink(view, now, lost, leaving)
    if members and all(worker.done for worker in members):
        return Decision(Action.COMPLETE, "every worker ended with exit code 0")
    failed = [worker for worker in members if worker.exit_at is not None]
    if failed or view.hang is not None:
        return _decide_failure(view, members, failed, now)
    if any(worker.done for worker in members):
        return Decision(Action.KEEP, "some workers have finished", next_loss(view, now))
    change = plan_change if stops else _consider_joiners
    return change(view, current, members, eligible(view, now), now)


def _shrink(
    view: MembershipState, now: float, lost: Sequence[str], leaving: Sequence[str]
) -> Decision:
    present = eligible(view, now)
    too_many = too_many_losses(view, lost)
    if too_many is not None:
        return too_many
    short = shortage(view.policy, present, "left")
    if short is not None:
        what = f"lost {', '.join(lost)}" if lost else f"{', '.join(leaving)} left"
        reason = f"{what}: {short}"
        return Decision(Action.HALT, reason, next_loss(view, now), lost=tuple(lost))
    return form(view, present, "a member is gone")


def _decide_failure(
    view: MembershipState, members: Sequence[WorkerState], failed: Sequence[WorkerState], now: float
) -> Decision:
    wait = delay_for_messages(view, members, failed, CONFIRM_SECONDS, now) if failed else None
    if wait is not None:
        return wait
    failure = root_failure_of(failed) or view.hang
    assert failure is not None
    ignored = is_ignored(failure, view.policy)
    count = 0 if ignored else view.spent + 1
    end = fail_job(failure, count, view.policy)
    if end is not None:
        return end
    row = failures_in_a_row(view, failed, now)
    pause = backoff_after(row, view.policy)
    when = f"in {pause:.0f} s" if pause else "now"
    number = "that a rule ignores" if ignored else f"{count} of {view.policy.max_failures}"
    return Decision(
        Action.BACKOFF,
        f"{failure.summary}; restart {number} {when}",
        now + pause,
        failure=failure,
        failures_in_a_row=row,
        counts=True,
        ignored=ignored,
    )


def _consider_joiners(
    view: MembershipState,
    current: Membership,
    _: Sequence[WorkerState],
    present: Sequence[WorkerState],
    now: float,
) -> Decision:
    joiners = joiners_of(current, present)
    wait = delay_for_joiners(view, joiners, present, now)
    if wait is not None:
        return wait
    return form(view, present, "workers join")
