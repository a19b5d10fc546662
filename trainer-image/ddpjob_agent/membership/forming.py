"""The formation of a membership: its members, their order and its one cause.

May not: decide when to form one; `policy` and `live_policy` do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddpjob_agent.membership.state import Action, Decision
from ddpjob_protocol.messages.membership import Cause, Membership, MembershipId
from ddpjob_protocol.text import plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddpjob_agent.membership.state import MembershipState, WorkerState
    from ddpjob_protocol.messages.control import Policy

MAX_BACKOFF_SECONDS = 300.0


def members_of(view: MembershipState, current: Membership) -> tuple[list[WorkerState], list[str]]:
    """Return the workers still in `current`, and the names of the members that are gone."""
    table = {worker.member.worker: worker for worker in view.workers}
    members, gone = [], []
    for member in current.members:
        worker = table.get(member.worker)
        if worker is None or worker.member.incarnation != member.incarnation:
            gone.append(member.worker)
        else:
            members.append(worker)
    return members, gone


def leaves(view: MembershipState, worker: WorkerState) -> bool:
    """Return whether this worker leaves in a planned way."""
    assert view.expectation is not None
    draining = worker.member.worker in view.expectation.draining
    return worker.leaving or draining or worker.is_being_ended(view.policy)


def is_lost(view: MembershipState, worker: WorkerState, now: float) -> bool:
    """Return whether this worker counts as lost."""
    return worker.lost_at(view.policy) <= now


def eligible(view: MembershipState, now: float) -> list[WorkerState]:
    """Return the workers that a new membership may hold: connected, alive, expected, staying."""
    return [
        worker
        for worker in view.workers
        if worker.closed_at is None
        and not is_lost(view, worker, now)
        and worker.unexpected_at is None
        and not worker.in_backoff(now)
        and not leaves(view, worker)
    ]


def shortage(policy: Policy, present: Sequence[WorkerState], state: str) -> str | None:
    """Return that too few workers are in a state ("here", "left"), or None if there are enough."""
    if len(present) < policy.minimum:
        return _too_few(len(present), policy.minimum, "", state)
    groups = [worker.member.worker.rsplit("-", 2)[0] for worker in present]
    for group, minimum in policy.minimums:
        if groups.count(group) < minimum:
            return _too_few(groups.count(group), minimum, f" of {group}", state)
    return None


def _too_few(count: int, minimum: int, group: str, state: str) -> str:
    verb = "is" if minimum == 1 else "are"
    return f"{count} of at least {plural(minimum, 'worker')}{group} {verb} {state}"


def suspects(
    view: MembershipState, members: Sequence[WorkerState], now: float
) -> list[WorkerState]:
    """Return the members that may be lost soon: simultaneous losses make one change.

    A member is suspect if its connection is closed, or its host is silent. So it is if it does not
    answer while no step is done, or was silent for most of the deadline.
    """
    limit = view.policy.heartbeat_deadline
    return [
        worker
        for worker in members
        if not is_lost(view, worker, now)
        and (
            worker.closed_at is not None
            or worker.host_silent_since is not None
            or worker.overdue_at is not None
            or now - worker.last_seen > 0.8 * limit
        )
    ]


def next_loss(view: MembershipState, now: float) -> float | None:
    """Return when the next worker counts as lost unless it sends a message before."""
    times = [worker.lost_at(view.policy) for worker in view.workers]
    return min((at for at in times if at > now), default=None)


def next_backoff_end(view: MembershipState, now: float) -> float | None:
    """Return when the next command that failed in live mode may start again."""
    times = (worker.rests_until for worker in view.workers)
    return min((at for at in times if at > now), default=None)


def earliest(*times: float | None) -> float | None:
    """Return the earliest time that is not None."""
    return min((at for at in times if at is not None), default=None)


def backoff_after(failures_in_a_row: int, policy: Policy) -> float:
    """Return the seconds until the next attempt: none after the first failure after health."""
    if failures_in_a_row == 0:
        return 0.0
    return min(policy.backoff * 2.0 ** (failures_in_a_row - 1), MAX_BACKOFF_SECONDS)


def too_many_losses(view: MembershipState, lost: Sequence[str]) -> Decision | None:
    """Return the decision to fail the job if these losses exceed its limit."""
    limit = view.policy.max_losses
    losses = view.current.losses + 1 if view.current and lost else 0
    if not lost or limit is None or losses <= limit:
        return None
    reason = f"lost {', '.join(lost)}: more than {limit} restarts by lost workers"
    return Decision(Action.FAIL, reason)


def form(
    view: MembershipState,
    present: Sequence[WorkerState],
    reason: str,
    after: int | None = None,
    failed: Sequence[str] = (),
) -> Decision:
    """Form a membership of the present workers: survivors keep their order, joiners are last."""
    old = view.current.members if view.current else ()
    here = {(w.member.worker, w.member.incarnation): w.member for w in present}
    staying = [here[key] for m in old if (key := (m.worker, m.incarnation)) in here]
    inside = {(m.worker, m.incarnation) for m in staying}
    arriving = sorted(
        (member for key, member in here.items() if key not in inside), key=lambda m: m.worker
    )
    left = {worker.member.worker for worker in view.workers if leaves(view, worker)}
    missing = [m.worker for m in old if (m.worker, m.incarnation) not in inside]
    explained = {*left, *failed}
    lost = sorted({*view.lost, *(name for name in missing if name not in explained)})
    cause = _cause(view, lost, missing)
    facts = (
        ("lost", lost),
        ("left", [name for name in missing if name in left]),
        ("joined", [member.worker for member in arriving]),
    )
    parts = [f"{word} {', '.join(names)}" for word, names in facts if names]
    if view.root_failure is not None:
        parts.insert(0, view.root_failure.summary)
    membership = Membership(
        id=MembershipId(view.term, view.boot, view.current.id.round + 1 if view.current else 1),
        members=(*staying, *arriving),
        cause=cause,
        detail="; ".join(parts),
        failures=view.failures,
        losses=(view.current.losses if view.current else 0) + (cause is Cause.LOST),
        after=after,
        snapshot_step=view.snapshot_step,
        repeated_steps=view.repeated_steps,
    )
    return Decision(Action.FORM, reason, membership=membership)


def _cause(view: MembershipState, lost: Sequence[str], missing: Sequence[str]) -> Cause:
    if view.current is None:
        return Cause.STARTED
    if lost:
        return Cause.LOST
    if view.root_failure is not None:
        return Cause.FAILED
    return Cause.LEFT if missing else Cause.JOINED
