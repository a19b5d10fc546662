"""What the rendezvous service knows: registered workers, the current membership, its history.

Events of agents and operator go in, `decide` applies `membership.decide_membership` until
nothing changes, and `order_for` says what each worker should be doing. Level-triggered: an
order depends on the state alone, so a lost message is healed by the next look.

May not: open sockets, read a clock (`now` is passed in) or import asyncio.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from .contract import Expectation, Failure, Member, Membership, Message, Policy, Report, State
from .membership import Action, Decision, View, Worker, decide_membership
from .rounds import Rounds

if TYPE_CHECKING:
    from collections.abc import Mapping


class Registry:
    """The state of one job's rendezvous."""

    def __init__(self, epoch: int, boot: int, wall_offset: float) -> None:
        self._view = View(policy=Policy(), workers=(), epoch=epoch, boot=boot)
        self._workers: dict[str, Worker] = {}
        self._wall_offset = wall_offset  # seconds since the epoch at monotonic zero
        self._rounds = Rounds()
        self._reason = ""
        self._state = State.WAITING
        self._failure: Failure | None = None
        self.unseen: set[str] = set()  # members known from other agents only, since a restart

    @property
    def current(self) -> Membership | None:
        """The newest membership, running or not."""
        return self._view.current

    # --- events ---------------------------------------------------------------------------------

    def expect(self, expectation: Expectation, now: float) -> None:
        """The operator says which workers to count on."""
        since = self._view.expected_since if self._view.expectation else now
        self._set(
            expectation=expectation,
            expected_since=since,
            policy=expectation.policy,
            failures=max(self._view.failures, expectation.failures),
        )
        for name in self._workers:
            self._workers[name] = self._named(self._workers[name], now)

    def _named(self, worker: Worker, now: float) -> Worker:
        """With the time since when the operator has not named it, if it does not."""
        expectation = self._view.expectation
        if expectation is None:
            return worker
        known = worker.member.worker in (*expectation.workers, *expectation.draining)
        since = None if known else worker.unexpected_at or now
        return dataclasses.replace(worker, unexpected_at=since)

    def hello(self, message: Mapping[str, Any], now: float) -> str:
        """An agent registers, or comes back; returns the worker's name."""
        member = Member(**message["member"])
        held = message.get("membership")
        membership = Membership.from_json(held) if held else None
        current = self._view.current
        if membership and (current is None or membership.id > current.id):
            self._adopt(membership, now)
        known = self._workers.get(member.worker)
        if known is None or known.member.incarnation != member.incarnation:
            known = Worker(member, registered_at=now, last_heard=now)
        if membership and self._view.current and membership.id == self._view.current.id:
            self.unseen.discard(member.worker)
            failure = message["failure"] and Failure.from_json(message["failure"])
            known = dataclasses.replace(
                known,
                done=message["done"],
                failure=failure,
                exit_at=(known.exit_at or now) if failure else None,
            )
            if not message["running"] and self._view.running:
                self._set(running=False, lost=(*self._view.lost, member.worker))
            for event in message.get("reports", ()):
                self._rounds.hear(event, now + self._wall_offset)
            self._set(snapshots=self._rounds.snapshot_step is not None)
        known = dataclasses.replace(known, last_heard=now, closed_at=None)
        self._workers[member.worker] = self._named(known, now)
        return member.worker

    def _adopt(self, membership: Membership, now: float) -> None:
        """Relearn a membership that was formed before this service started."""
        self._set(current=membership, running=True, formed_at=now, failures=membership.failures)
        self._rounds.begin(membership, now + self._wall_offset)
        self._state = State.RUNNING
        self.unseen = {member.worker for member in membership.members}
        policy = self._view.policy
        closed_at = now + policy.heartbeat_deadline - policy.reconnect_grace
        for member in membership.members:
            if member.worker not in self._workers:
                ghost = Worker(member, registered_at=now, last_heard=now, closed_at=closed_at)
                self._workers[member.worker] = self._named(ghost, now)

    def heard(self, worker: str, now: float) -> None:
        """Any message came from this worker."""
        self._change(worker, last_heard=now)

    def forgive(self, seconds: float) -> None:
        """This service itself stood still for so long: nobody's silence in it counts."""
        for name, worker in self._workers.items():
            closed_at = worker.closed_at if worker.closed_at is None else worker.closed_at + seconds
            self._change(name, last_heard=worker.last_heard + seconds, closed_at=closed_at)

    def closed(self, worker: str, now: float) -> None:
        """The connection of this worker is gone."""
        self._change(worker, closed_at=now)

    def left(self, worker: str) -> None:
        """This worker says that it is about to end."""
        self._change(worker, leaving=True)

    def exited(self, worker: str, message: Mapping[str, Any], now: float) -> None:
        """The command of this worker ended, well or badly."""
        if not self._is_current(worker, message):
            return
        if message["failure"] is None:
            self._change(worker, done=True)
        else:
            self._change(worker, exit_at=now, failure=Failure.from_json(message["failure"]))

    def reported(self, worker: str, message: Mapping[str, Any], now: float) -> None:
        """The processes of this worker say how far they are."""
        if not self._is_current(worker, message):
            return
        before = self._rounds.snapshot_step
        self._rounds.hear(message["report"], now + self._wall_offset)
        if self._rounds.snapshot_step != before:
            self._set(snapshots=True, saved_at=now)

    def _is_current(self, worker: str, message: Mapping[str, Any]) -> bool:
        """Whether a word about a membership comes from a member, while it runs."""
        view = self._view
        return bool(
            view.current
            and view.running
            and message["membership"] == str(view.current.id)
            and self.is_member(worker)
        )

    # --- decisions ------------------------------------------------------------------------------

    def decide(self, now: float) -> float | None:
        """Apply decisions until there is nothing to do; returns when to look again."""
        while self._state not in (State.COMPLETE, State.FAILED):
            self._set(workers=tuple(self._workers.values()))
            decision = decide_membership(self._view, now)
            self._reason = decision.reason
            if decision.action is Action.KEEP:
                return decision.again_at
            self._apply(decision, now)
        return None

    def _apply(self, decision: Decision, now: float) -> None:
        if decision.failure:
            self._failure = decision.failure
        if decision.action is Action.FORM:
            assert decision.membership is not None
            self._begin(decision.membership, now)
        elif decision.action is Action.HALT:
            self._state = State.WAITING
            self._set(running=False, lost=decision.lost)
        elif decision.action is Action.BACKOFF:
            assert decision.again_at is not None
            self._state = State.WAITING
            self._set(
                running=False,
                blamed=decision.failure,
                failures=self._view.failures + 1,
                resume_at=decision.again_at,
            )
        else:
            self._state = State.COMPLETE if decision.action is Action.COMPLETE else State.FAILED
            self._set(running=False)

    def _begin(self, membership: Membership, now: float) -> None:
        self._state = State.RUNNING
        self._set(
            current=membership, running=True, formed_at=now, saved_at=None,
            lost=(), blamed=None, resume_at=0.0,
        )  # fmt: skip
        self._rounds.begin(membership, now + self._wall_offset)
        self.unseen = set()
        policy = self._view.policy
        self._workers = {
            name: dataclasses.replace(worker, done=False, exit_at=None, failure=None)
            for name, worker in self._workers.items()
            if worker.lost_at(policy) > now
        }

    # --- what follows from the state --------------------------------------------------------------

    def knows(self, worker: str) -> bool:
        """Whether this worker is still in the table; who is not must register again."""
        return worker in self._workers

    def is_member(self, worker: str) -> bool:
        """Whether the worker, in its present incarnation, is in the current membership."""
        known, current = self._workers.get(worker), self._view.current
        return bool(known and current and known.member in current.members)

    def order_for(self, worker: str) -> Message:
        """What this worker should be doing now."""
        view = self._view
        if self._state in (State.COMPLETE, State.FAILED):
            ok = self._state is State.COMPLETE
            return {"type": "finish", "ok": ok, "reason": self._reason}
        if view.running and view.current and self.is_member(worker):
            return {"type": "run", "membership": view.current.to_json()}
        return {"type": "halt"}

    def report(self, version: int) -> Report:
        """What the operator reads."""
        view, rounds = self._view, self._rounds
        return Report(
            version=version,
            epoch=view.epoch,
            boot=view.boot,
            state=self._state,
            reason=self._reason,
            workers=tuple(sorted(n for n, w in self._workers.items() if w.closed_at is None)),
            membership=view.current,
            failures=view.failures,
            losses=view.current.losses if view.current else 0,
            step=rounds.step,
            total_steps=rounds.total_steps,
            metrics=dict(rounds.metrics),
            snapshot_step=rounds.snapshot_step,
            failure=self._failure,
            rounds=rounds.all(),
        )

    def _set(self, **changes: Any) -> None:
        self._view = dataclasses.replace(self._view, **changes)

    def _change(self, worker: str, **changes: Any) -> None:
        if worker in self._workers:
            self._workers[worker] = dataclasses.replace(self._workers[worker], **changes)
