"""Who trains together now, and why: the policy of the rendezvous service as one pure function.

Theory of operation. The service keeps a table of registered workers and asks
`decide_membership` after every event, and again at `Decision.again_at`. The answer follows from
the arguments alone, the time included. A membership is never edited: each change is a new one,
with one cause.

    no membership ──(all expected are here, or startupWait is over)──► FORM started
    running ──(member lost)──► FORM lost            ──(below the minimum)──► HALT
            ──(member leaves)──► FORM left
            ──(command failed, all members heard since)──► BACKOFF ──(time is up)──► FORM failed
            ──(joiner, when joinPolicy lets it in)──► FORM joined
            ──(all commands ended with 0)──► COMPLETE
    halted  ──(enough workers again)──► FORM

An exit is not blamed on the application before every member of the membership has been heard
from `CONFIRM_SECONDS` after it: survivors of a lost node fail within milliseconds of the loss.

May not: read a clock, open anything, keep state, import asyncio.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING

from .contract import Cause, Expectation, Failure, Member, Membership, MembershipId, Policy

if TYPE_CHECKING:
    from collections.abc import Sequence

CONFIRM_SECONDS = 1.0
MAX_BACKOFF_SECONDS = 300.0
FAREWELL_SECONDS = 2.0  # in which a worker that the operator no longer names is heard, or lost


@dataclasses.dataclass(frozen=True)
class Worker:
    """One registered worker as the service sees it. Times are the service's monotonic seconds."""

    member: Member
    registered_at: float
    last_heard: float
    closed_at: float | None = None  # when its connection closed; None while it is open
    leaving: bool = False  # it says so itself
    unexpected_at: float | None = None  # since when the operator has not named it
    done: bool = False  # its command ended with 0 in the current membership
    exit_at: float | None = None  # when the service heard that its command failed
    failure: Failure | None = None

    def lost_at(self, policy: Policy) -> float:
        """When this worker counts as lost unless it is heard from before."""
        at, grace = self.last_heard + policy.heartbeat_deadline, policy.reconnect_grace
        if self.unexpected_at is not None:
            at, grace = min(at, self.unexpected_at + FAREWELL_SECONDS), 0.0
        return at if self.closed_at is None else min(at, self.closed_at + grace)

    def is_being_ended(self, policy: Policy) -> bool:
        """Whether it lives on without a pod: then somebody deleted that, and it has to go."""
        since = self.unexpected_at
        return since is not None and self.last_heard >= since + policy.reconnect_grace


@dataclasses.dataclass(frozen=True)
class View:
    """Everything that the decision depends on."""

    policy: Policy
    workers: tuple[Worker, ...]
    epoch: int
    boot: int
    expectation: Expectation | None = None
    expected_since: float = 0.0  # when the first expectation came
    current: Membership | None = None
    running: bool = False  # the processes of `current` are meant to run
    formed_at: float = 0.0
    failures: int = 0
    blamed: Failure | None = None  # a failure whose back-off is running
    resume_at: float = 0.0  # end of that back-off
    lost: tuple[str, ...] = ()  # workers whose loss halted `current`
    snapshots: bool = False  # the job has reported a snapshot: level L1
    saved_at: float | None = None  # last one in the current membership


class Action(enum.Enum):
    """What the service is to do."""

    KEEP = "keep"
    HALT = "halt"
    FORM = "form"
    BACKOFF = "backoff"
    COMPLETE = "complete"
    FAIL = "fail"


@dataclasses.dataclass(frozen=True)
class Decision:
    """An action with the reason that people read in the job's status."""

    action: Action
    reason: str
    again_at: float | None = None  # decide again then, whatever happens before
    membership: Membership | None = None
    failure: Failure | None = None
    lost: tuple[str, ...] = ()


def decide_membership(view: View, now: float) -> Decision:
    """The next action, given all that is known at `now`."""
    if view.expectation is None:
        return Decision(Action.KEEP, "waiting for the operator to say which workers to expect")
    if view.current is None or not view.running:
        return _assemble(view, now)
    return _supervise(view, view.current, now)


# --- no membership is running -------------------------------------------------------------------


def _assemble(view: View, now: float) -> Decision:
    assert view.expectation is not None
    policy, present = view.policy, _eligible(view, now)
    here = {worker.member.worker for worker in present}
    missing = [name for name in view.expectation.workers if name not in here]
    if len(present) < policy.minimum:
        reason = f"{len(present)} of at least {policy.minimum} workers are here"
        return Decision(Action.KEEP, reason + _waiting_for(missing), _next_loss(view, now))
    if now < view.resume_at:
        what = view.blamed.summary if view.blamed else "a worker failed"
        return Decision(Action.KEEP, f"{what}; backing off", view.resume_at)
    if missing and view.blamed is None:
        newest = max(worker.registered_at for worker in present)
        ready_at = newest + policy.settle
        if view.current is None:
            ready_at = max(ready_at, view.expected_since + policy.startup_wait)
        if now < ready_at:
            reason = f"{len(present)} workers are here" + _waiting_for(missing)
            return Decision(Action.KEEP, reason, _soonest(ready_at, _next_loss(view, now)))
    return _form(view, present, "enough workers are here")


def _waiting_for(missing: Sequence[str]) -> str:
    if not missing:
        return ""
    rest = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
    return f"; waiting for {', '.join(missing[:3])}{rest}"


# --- a membership is running --------------------------------------------------------------------


def _supervise(view: View, current: Membership, now: float) -> Decision:
    members, gone = _members(view, current)
    lost = gone + [w.member.worker for w in members if _is_lost(view, w, now)]
    leaving = [w.member.worker for w in members if _leaves(view, w)]
    if lost:
        doubts = _doubts(view, members, now)
        if doubts:
            return Decision(Action.KEEP, f"lost {', '.join(lost)}; others in doubt", min(doubts))
    if lost or leaving:
        return _shrink(view, now, lost, leaving)
    if members and all(worker.done for worker in members):
        return Decision(Action.COMPLETE, "every worker ended with exit code 0")
    failed = [worker for worker in members if worker.exit_at is not None]
    if failed:
        return _blame(view, members, failed, now)
    if any(worker.done for worker in members):
        return Decision(Action.KEEP, "some workers have finished", _next_loss(view, now))
    return _consider_joiners(view, current, now)


def _shrink(view: View, now: float, lost: Sequence[str], leaving: Sequence[str]) -> Decision:
    policy, present = view.policy, _eligible(view, now)
    losses = view.current.losses + 1 if view.current and lost else 0
    if lost and policy.max_losses is not None and losses > policy.max_losses:
        reason = f"lost {', '.join(lost)}: more than {policy.max_losses} restarts by lost workers"
        return Decision(Action.FAIL, reason)
    if len(present) < policy.minimum:
        what = f"lost {', '.join(lost)}" if lost else f"{', '.join(leaving)} left"
        reason = f"{what}: {len(present)} of at least {policy.minimum} workers are left"
        return Decision(Action.HALT, reason, _next_loss(view, now), lost=tuple(lost))
    return _form(view, present, "a member is gone")


def _blame(view: View, members: Sequence[Worker], failed: Sequence[Worker], now: float) -> Decision:
    first = min(worker.exit_at for worker in failed if worker.exit_at is not None)
    unheard = [w for w in members if w.last_heard < first + CONFIRM_SECONDS]
    if unheard:
        names = ", ".join(w.member.worker for w in unheard[:3])
        reason = f"a command failed; waiting to hear that {names} is alive"
        again = min(worker.lost_at(view.policy) for worker in unheard)
        return Decision(Action.KEEP, reason, max(again, now))
    failures = [worker.failure for worker in failed if worker.failure is not None]
    failure = min(failures, key=lambda f: (f.consequential, f.at))
    if failure.permanent:
        return Decision(Action.FAIL, failure.summary, failure=failure)
    count = view.failures + 1
    if count > view.policy.max_failures:
        reason = f"{failure.summary} (failure {count}, {view.policy.max_failures} restarts allowed)"
        return Decision(Action.FAIL, reason, failure=failure)
    pause = min(view.policy.backoff * 2 ** (count - 1), MAX_BACKOFF_SECONDS)
    reason = f"{failure.summary}; restart {count} of {view.policy.max_failures} in {pause:.0f} s"
    return Decision(Action.BACKOFF, reason, now + pause, failure=failure)


def _consider_joiners(view: View, current: Membership, now: float) -> Decision:
    policy = view.policy
    present = _eligible(view, now)
    inside = {member.worker for member in current.members}
    joiners = [worker for worker in present if worker.member.worker not in inside]
    next_loss = _next_loss(view, now)
    if not joiners:
        return Decision(Action.KEEP, "running", next_loss)
    names = ", ".join(worker.member.worker for worker in joiners)
    if policy.join_policy == "Never":
        return Decision(Action.KEEP, f"running; {names} must wait: joinPolicy is Never", next_loss)
    oldest = min(worker.registered_at for worker in joiners)
    newest = max(worker.registered_at for worker in joiners)
    assert view.expectation is not None
    quiet_at = newest if len(present) == len(view.expectation.workers) else newest + policy.settle
    cap = oldest + policy.max_join_wait
    if policy.join_policy == "Immediate":
        ready_at, why = quiet_at, "more workers to come"
    elif view.snapshots:
        saved = view.saved_at is not None and view.saved_at >= quiet_at
        ready_at, why = (now if saved else cap), "the next snapshot"
    else:
        ready_at = max(quiet_at, view.formed_at + policy.min_between_joins)
        why = f"{policy.min_between_joins:.0f} s between joins"
    ready_at = min(ready_at, cap)
    if now < ready_at:
        reason = f"running; {names} waits for {why}, {policy.max_join_wait:.0f} s at most"
        return Decision(Action.KEEP, reason, _soonest(ready_at, next_loss))
    return _form(view, present, "workers join")


# --- shared ---------------------------------------------------------------------------------------


def _members(view: View, current: Membership) -> tuple[list[Worker], list[str]]:
    """The workers of `current` that are still the same, and the names of those that are not."""
    table = {worker.member.worker: worker for worker in view.workers}
    members, gone = [], []
    for member in current.members:
        worker = table.get(member.worker)
        if worker is None or worker.member.incarnation != member.incarnation:
            gone.append(member.worker)
        else:
            members.append(worker)
    return members, gone


def _leaves(view: View, worker: Worker) -> bool:
    assert view.expectation is not None
    draining = worker.member.worker in view.expectation.draining
    return worker.leaving or draining or worker.is_being_ended(view.policy)


def _is_lost(view: View, worker: Worker, now: float) -> bool:
    return worker.lost_at(view.policy) <= now


def _eligible(view: View, now: float) -> list[Worker]:
    """Workers that a new membership may hold: connected, alive, expected, staying."""
    return [
        worker
        for worker in view.workers
        if worker.closed_at is None
        and not _is_lost(view, worker, now)
        and worker.unexpected_at is None
        and not _leaves(view, worker)
    ]


def _doubts(view: View, members: Sequence[Worker], now: float) -> list[float]:
    """When it will be known of each doubtful member whether it is lost, too: one loss, one change.

    In doubt is whose connection is closed, and who has been silent for most of the deadline.
    """
    limit = view.policy.heartbeat_deadline
    return [
        worker.lost_at(view.policy)
        for worker in members
        if not _is_lost(view, worker, now)
        and (worker.closed_at is not None or now - worker.last_heard > 0.8 * limit)
    ]


def _next_loss(view: View, now: float) -> float | None:
    times = [worker.lost_at(view.policy) for worker in view.workers]
    return min((at for at in times if at > now), default=None)


def _soonest(at: float, other: float | None) -> float:
    return at if other is None else min(at, other)


def _form(view: View, present: Sequence[Worker], reason: str) -> Decision:
    """A new membership of all who are present: survivors keep their order, joiners come last."""
    old = view.current.members if view.current else ()
    here = {(w.member.worker, w.member.incarnation): w.member for w in present}
    staying = [here[key] for m in old if (key := (m.worker, m.incarnation)) in here]
    arriving = sorted(
        (member for member in here.values() if member not in staying), key=lambda m: m.worker
    )
    left = {worker.member.worker for worker in view.workers if _leaves(view, worker)}
    missing = [member.worker for member in old if member not in staying]
    lost = sorted({*view.lost, *(name for name in missing if name not in left)})
    cause = _cause(view, lost, missing)
    facts = (
        ("lost", lost),
        ("left", [name for name in missing if name in left]),
        ("joined", [member.worker for member in arriving]),
    )
    parts = [f"{word} {', '.join(names)}" for word, names in facts if names]
    if view.blamed is not None:
        parts.insert(0, view.blamed.summary)
    membership = Membership(
        id=MembershipId(view.epoch, view.boot, view.current.id.n + 1 if view.current else 1),
        members=(*staying, *arriving),
        cause=cause,
        detail="; ".join(parts),
        failures=view.failures,
        losses=(view.current.losses if view.current else 0) + (cause is Cause.LOST),
    )
    return Decision(Action.FORM, reason, membership=membership)


def _cause(view: View, lost: Sequence[str], missing: Sequence[str]) -> Cause:
    if view.current is None:
        return Cause.STARTED
    if lost:
        return Cause.LOST
    if view.blamed is not None:
        return Cause.FAILED
    return Cause.LEFT if missing else Cause.JOINED
