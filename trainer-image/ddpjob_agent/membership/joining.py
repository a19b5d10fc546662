"""The time at which workers join a running membership: the job's joinPolicy.

May not: form a membership, read a clock, open anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddpjob_agent.membership.forming import earliest, next_loss
from ddpjob_agent.membership.state import Action, Decision

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddpjob_agent.membership.state import MembershipState, WorkerState
    from ddpjob_protocol.messages.membership import Membership


def joiners_of(current: Membership, present: Sequence[WorkerState]) -> list[WorkerState]:
    """Return the present workers that are not in `current`."""
    inside = {member.worker for member in current.members}
    return [worker for worker in present if worker.member.worker not in inside]


def delay_for_joiners(
    view: MembershipState,
    joiners: Sequence[WorkerState],
    present: Sequence[WorkerState],
    now: float,
) -> Decision | None:
    """Return the decision to wait, with its reason; return None when the joiners are due."""
    policy, next_at = view.policy, earliest(next_loss(view, now))
    if not joiners:
        return Decision(Action.KEEP, "running", next_at)
    names = ", ".join(worker.member.worker for worker in joiners)
    if policy.join_policy == "Never":
        return Decision(Action.KEEP, f"running; {names} must wait: joinPolicy is Never", next_at)
    arrived = [_arrived_at(view, worker) for worker in joiners]
    cap = min(arrived) + policy.max_join_wait
    assert view.expectation is not None
    all_here = len(present) == len(view.expectation.workers)
    quiet_at = max(arrived) + (0 if all_here else policy.settle)
    if view.live or policy.join_policy == "Immediate":
        ready_at, why = quiet_at, "more workers to come"
    elif view.snapshot_step is not None:
        saved = view.saved_at is not None and view.saved_at >= quiet_at
        ready_at, why = (now if saved else cap), "the next snapshot"
    elif policy.files:
        kept = view.kept_at is not None and view.kept_at >= quiet_at
        ready_at, why = (now if kept else cap), "the script to save its files"
    else:
        ready_at = max(quiet_at, view.formed_at + policy.min_between_joins)
        why = f"the {policy.min_between_joins:.0f} s of minSecondsBetweenJoins"
    ready_at = min(ready_at, cap)
    if now < ready_at:
        wait = "waits" if len(joiners) == 1 else "wait"
        reason = f"running; {names} {wait} for {why}, {policy.max_join_wait:.0f} s at most"
        return Decision(Action.KEEP, reason, earliest(ready_at, next_at))
    return None


def _arrived_at(view: MembershipState, worker: WorkerState) -> float:
    ready_at = worker.ready_at if view.live else None
    return worker.registered_at if ready_at is None else ready_at
