"""The state of the rendezvous service: registered workers, the current membership, its history.

Agents and the operator send events. `decide` applies `policy.decide_membership` until nothing
changes, and `order_for` returns the order for each worker. Orders are level-triggered: an order
depends on the state alone, so the next comparison repairs a lost message.

May not: open sockets, read a clock (`now` is passed in) or import asyncio.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from ddpjob_agent.membership.forming import backoff_after
from ddpjob_agent.membership.last_step import LastStep
from ddpjob_agent.membership.policy import decide_membership
from ddpjob_agent.membership.state import Action, Decision, MembershipState, WorkerState
from ddpjob_agent.service.file_sync import FileSyncCoordinator
from ddpjob_agent.service.history import MembershipHistory
from ddpjob_agent.service.orders import Orders
from ddpjob_agent.service.stall_detector import StallDetector
from ddpjob_agent.service.worker_table import WorkerTable
from ddpjob_protocol.codec import decode
from ddpjob_protocol.control import Expectation, Policy, Report, ServiceState, Stall
from ddpjob_protocol.membership import Cause, Member, Membership
from ddpjob_protocol.messages import Failure, Message
from ddpjob_protocol.process import ProgressEvent

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Registry:
    """The state of one job's rendezvous."""

    def __init__(self, term: int, boot: int, wall_offset: float) -> None:
        self._view = MembershipState(policy=Policy(), workers=(), term=term, boot=boot)
        self._roster = WorkerTable()
        self._wall_offset = wall_offset  # seconds since the epoch at monotonic zero
        self._rounds = MembershipHistory()
        self._progress = StallDetector()
        self._stall: Stall | None = None
        self._reason = ""
        self._state = ServiceState.WAITING
        self._failure: Failure | None = None
        self._last: LastStep | None = None
        self._files = FileSyncCoordinator(self._roster)
        self.unseen: set[str] = set()  # members known from other agents only, since a restart

    @property
    def current(self) -> Membership | None:
        """The newest membership, running or not."""
        return self._view.current

    # --- events ---------------------------------------------------------------------------------

    def on_expectation(self, expectation: Expectation, now: float) -> None:
        """Set the workers that the operator expects."""
        since = self._view.expected_since if self._view.expectation else now
        self._update(
            expectation=expectation,
            expected_since=since,
            policy=expectation.policy,
            failures=max(self._view.failures, expectation.failures),
        )
        self._roster.on_expectation(expectation, now)

    def on_hello(self, message: Mapping[str, Any], now: float) -> str:
        """Register an agent, or register it again; return the worker's name."""
        member = decode(Member, message["member"])
        held = message.get("membership")
        membership = decode(Membership, held) if held else None
        current = self._view.current
        if membership and (current is None or membership.id > current.id):
            self._adopt(membership, now)
        known = self._roster.row_for(member, now)
        current = self._view.current
        if (
            current
            and membership
            and membership.id == current.id
            and known.member in current.members
        ):
            self.unseen.discard(member.worker)
            failure = message["failure"] and decode(Failure, message["failure"])
            known = dataclasses.replace(
                known,
                done=message["done"],
                failure=failure,
                exit_at=(known.exit_at or now) if failure else None,
                failed_in=str(membership.id),
                stops=message.get("stops", False),
            )
            if not message["running"] and self._view.running:
                self._update(running=False, lost=(*self._view.lost, member.worker))
            if message.get("had_done"):
                self.on_steps_done(message["had_done"])
            for event in message.get("reports", ()):
                self._rounds.on_progress(event, now + self._wall_offset)
            self._update(snapshot_step=self._rounds.snapshot_step)
        if message.get("files"):
            self.on_inventory(member.worker, message["files"])
        if message.get("stopped"):
            self.on_stopped(member.worker, {"membership": message["stopped"]})
        if message["live"]:
            self._update(live=True)
        known = dataclasses.replace(
            known,
            last_heard=now,
            closed_at=None,
            ready_at=(known.ready_at or now) if message["ready"] else None,
            finished=message["finished"],
            port=message.get("port"),
            reach=message.get("reach"),
        )
        self._roster.put(known, now)
        return member.worker

    def _adopt(self, membership: Membership, now: float) -> None:
        """Relearn a membership that was formed before this service started."""
        self._update(current=membership, running=True, formed_at=now, failures=membership.failures)
        self._rounds.on_membership(membership, now + self._wall_offset)
        self._progress.on_membership(membership, None)
        self._state = ServiceState.RUNNING
        self.unseen = {member.worker for member in membership.members}
        policy = self._view.policy
        closed_at = now + policy.heartbeat_deadline - policy.reconnect_grace
        for member in membership.members:
            if self._roster.get(member.worker) is None:
                ghost = WorkerState(member, registered_at=now, last_heard=now, closed_at=closed_at)
                self._roster.put(ghost, now)

    def on_heartbeat(self, worker: str, now: float) -> None:
        """Record the time of a message from this worker."""
        self._roster.change(worker, last_heard=now)

    def extend_deadlines(self, seconds: float) -> None:
        """Extend all deadlines by the seconds in which this service itself stood still."""
        self._roster.extend_deadlines(seconds)
        self._progress.extend_deadlines(seconds)

    def on_disconnect(self, worker: str, now: float) -> None:
        """Record that the connection of this worker closed."""
        self._roster.change(worker, closed_at=now)

    def on_left(self, worker: str) -> None:
        """Record that this worker is about to end."""
        self._roster.change(worker, leaving=True)

    def on_overdue(self, worker: str, message: Mapping[str, Any]) -> None:
        """Record that this worker's processes did not reach their last step in time."""
        self._rounds.add_overdue(worker, float(message["seconds"]))

    def on_stuck(self, worker: str, message: Mapping[str, Any]) -> None:
        """Record a process stuck in a broken membership; its agent stops it."""
        step = message["step"]
        self._rounds.add_stuck(
            worker, str(message["membership"]), None if step is None else int(step)
        )

    def on_unreachable(self, worker: str, message: Mapping[str, Any]) -> None:
        """Record the members to which this worker cannot open connections."""
        if self._is_current(worker, message):
            self._rounds.set_unreachable(worker, list(map(str, message["workers"])))

    def on_steps_done(self, message: Mapping[str, Any]) -> None:
        """Record the last step of stopped processes in their membership."""
        self._rounds.on_steps_done(message["membership"], int(message["step"]))

    def on_exited(self, worker: str, message: Mapping[str, Any], now: float) -> None:
        """Record the end of this worker's command, with its failure if there is one."""
        if self._view.live:
            self._on_live_exited(worker, message, now)
            return
        if not self._is_current(worker, message):
            return
        if message["failure"] is None:
            self._roster.change(worker, done=True)
        else:
            self._roster.change(worker, exit_at=now, failure=decode(Failure, message["failure"]))

    def _on_live_exited(self, worker: str, message: Mapping[str, Any], now: float) -> None:
        known = self._roster.get(worker)
        if known is None or not message["live"]:
            return  # of the start before live mode was known
        failure = message["failure"] and decode(Failure, message["failure"])
        if self._view.running and self.is_member(worker):
            exit_at = now if failure else None
            self._roster.change(
                worker, done=failure is None, exit_at=exit_at, failure=failure,
                failed_in=message["membership"],
            )  # fmt: skip
        elif failure:  # not a member: the job counts no failure, but the worker backs off
            pause = backoff_after(known.failures + 1, self._view.policy)
            self._roster.back_off(worker, now + pause)

    def on_live(self) -> None:
        """Switch the job to live mode; all processes restart once."""
        if not self._view.live:
            self._update(live=True)
            self._roster.change_all(done=False, exit_at=None, failure=None, ready_at=None)

    def on_ready(self, worker: str, now: float) -> None:
        """Record that all processes of this worker can join a membership."""
        self._roster.change(worker, ready_at=now)

    def on_promise(self, worker: str, step: int) -> None:
        """Record the last step that this worker's processes begin without a further order."""
        if self._view.asked_at is not None:
            self._roster.change(worker, promise=step)

    def on_stops(self, worker: str, message: Mapping[str, Any]) -> None:
        """Record that this worker's processes accept a stop step."""
        if self._is_current(worker, message):
            self._roster.change(worker, stops=True)

    def on_stopped(self, worker: str, message: Mapping[str, Any]) -> None:
        """Record that this worker's processes have stopped in a membership."""
        if self._last is not None and message["membership"] == str(self._last.membership.id):
            self._last.stopped.add(worker)

    def on_inventory(self, worker: str, message: Mapping[str, Any]) -> None:
        """Record the replicas of the script's files that this worker holds."""
        self._files.on_inventory(self._view, worker, message)

    def on_finished(self, worker: str) -> None:
        """Record that a process of this worker has done all steps."""
        self._roster.change(worker, finished=True)

    def on_broken(self, worker: str, message: Mapping[str, Any], now: float) -> None:
        """Record that this worker's processes lost connections in this membership."""
        current = self._view.current
        is_news = self._view.broken is None
        if is_news and current and message["membership"] == str(current.id):
            summary = f"{worker} lost its connection to others: {message['why']}"
            failure = Failure(now + self._wall_offset, summary, consequential=True)
            self._update(broken=failure, broken_at=now)

    def on_progress(self, worker: str, message: Mapping[str, Any], now: float) -> None:
        """Record a progress report of this worker's processes."""
        if not self._is_current(worker, message):
            return
        before, report = self._rounds.snapshot_step, message["report"]
        self._rounds.on_progress(report, now + self._wall_offset)
        if ProgressEvent(report["event"]) is ProgressEvent.STEP:
            self._progress.on_step(int(report["step"]), now, now + self._wall_offset)
        if self._rounds.snapshot_step != before:
            self._update(snapshot_step=self._rounds.snapshot_step, saved_at=now)

    def on_processes_alive(
        self, worker: str, processes: Sequence[Mapping[str, Any]], now: float
    ) -> None:
        """Record the heartbeats of this worker's processes, each with its membership."""
        current = [each for each in processes if self._is_current(worker, each)]
        self._progress.on_heartbeat(worker, current, now)

    def _is_current(self, worker: str, message: Mapping[str, Any]) -> bool:
        """Return whether a message about a membership is from a member while it runs."""
        view = self._view
        return bool(
            view.current
            and view.running
            and message["membership"] == str(view.current.id)
            and self.is_member(worker)
        )

    # --- decisions ------------------------------------------------------------------------------

    def decide(self, now: float) -> float | None:
        """Apply decisions until nothing changes; return when to decide again."""
        again_at = self._decide(now)
        if self._files.update(self._view, now, now + self._wall_offset):
            self._update(kept_at=now)
        self._stall = self._progress.find_stall(
            self._view.policy,
            now,
            due=self._step_is_due(),
            changing=self._view.asked_at is not None,
        )
        return again_at

    def _step_is_due(self) -> bool:
        """Return whether the processes run and have steps left."""
        step, total = self._rounds.step, self._rounds.total_steps
        at_end = step is not None and total is not None and step >= total
        over = at_end or any(worker.done or worker.finished for worker in self._roster.workers())
        return self._state is ServiceState.RUNNING and self._view.running and not over

    def _decide(self, now: float) -> float | None:
        while self._state not in (ServiceState.COMPLETE, ServiceState.FAILED):
            self._update(
                workers=self._roster.workers(),
                policy=self._policy(),
                repeated_steps=self._rounds.repeated_steps,
            )
            decision = decide_membership(self._view, now)
            self._reason = decision.reason
            if decision.action is Action.KEEP:
                return decision.again_at
            self._apply(decision, now)
        return None

    def _policy(self) -> Policy:
        """Return the job's policy with the deadlines of its mode and of a broken membership."""
        view = self._view
        policy = view.expectation.policy if view.expectation else view.policy
        if view.live:
            deadline = min(policy.heartbeat_deadline, policy.live_deadline)
            policy = dataclasses.replace(policy, heartbeat_deadline=deadline)
        if view.broken:  # then a closed connection means a lost worker
            policy = dataclasses.replace(policy, reconnect_grace=0.0)
        return policy

    def _apply(self, decision: Decision, now: float) -> None:
        if decision.failure:
            self._failure = decision.failure
        if decision.counts:
            counted_in = str(self._view.current.id) if self._view.current else ""
            self._update(failures=self._view.failures + 1, counted_in=counted_in)
        for worker in decision.failed:
            self._roster.back_off(worker, decision.rest_until)
        if decision.action is Action.FORM:
            assert decision.membership is not None
            self._start_membership(decision.membership, now)
        elif decision.action is Action.HALT:
            self._state = ServiceState.WAITING
            self._agree_last_step(decision.after, broken=bool(decision.lost or decision.failure))
            self._update(
                running=False, lost=decision.lost, blamed=decision.failure, asked_at=None
            )  # fmt: skip
        elif decision.action in (Action.ASK_STOP_STEP, Action.CANCEL_STOP):
            self._update(asked_at=now if decision.action is Action.ASK_STOP_STEP else None)
            self._roster.change_all(promise=None)
        elif decision.action is Action.BACKOFF:
            assert decision.again_at is not None
            self._state = ServiceState.WAITING
            self._update(
                running=False,
                blamed=decision.failure,
                failures=self._view.failures + 1,
                resume_at=decision.again_at,
            )
        else:
            self._state = (
                ServiceState.COMPLETE if decision.action is Action.COMPLETE else ServiceState.FAILED
            )
            self._update(running=False)

    def _agree_last_step(self, after: int | None, *, broken: bool) -> None:
        """Keep the last step of the ending membership; forget it if the membership is broken.

        Outside live mode, processes may still do the last step of an earlier membership.
        """
        if after is not None and self._view.current is not None:
            self._last = LastStep(self._view.current, after)
        elif broken or self._view.live:
            self._last = None

    def _start_membership(self, membership: Membership, now: float) -> None:
        self._state = ServiceState.RUNNING
        self._agree_last_step(
            membership.after, broken=membership.cause in (Cause.LOST, Cause.FAILED)
        )
        self._update(
            current=membership, running=True, formed_at=now, saved_at=None, kept_at=None,
            lost=(), blamed=None, resume_at=0.0, broken=None, asked_at=None,
        )  # fmt: skip
        self._rounds.on_membership(membership, now + self._wall_offset)
        waits = self._view.live and membership.after is not None
        self._progress.on_membership(membership, now, waits_for_last=waits)
        self.unseen = set()
        self._roster.on_membership(self._view.policy, now)

    # --- views of the state -----------------------------------------------------------------------

    def knows(self, worker: str) -> bool:
        """Return whether this worker is in the table; otherwise it must register again."""
        return self._roster.get(worker) is not None

    def is_member(self, worker: str) -> bool:
        """Return whether the worker's present incarnation is in the current membership."""
        known, current = self._roster.get(worker), self._view.current
        return bool(known and current and known.member in current.members)

    def order_for(self, worker: str, now: float) -> Message:
        """Return the current order for this worker."""
        if self._state in (ServiceState.COMPLETE, ServiceState.FAILED):
            ok = self._state is ServiceState.COMPLETE
            return {"type": "finish", "ok": ok, "reason": self._reason}
        return Orders(self._view, self._roster, self._files, self._last).order_for(worker, now)

    def report(self, version: int) -> Report:
        """Return the report for the operator."""
        view, rounds = self._view, self._rounds
        return Report(
            version=version,
            term=view.term,
            boot=view.boot,
            state=self._state,
            reason=self._reason,
            workers=tuple(
                sorted(w.member.worker for w in self._roster.workers() if w.closed_at is None)
            ),
            membership=view.current,
            failures=view.failures,
            losses=view.current.losses if view.current else 0,
            step=rounds.step,
            total_steps=rounds.total_steps,
            metrics=dict(rounds.metrics),
            snapshot_step=rounds.snapshot_step,
            failure=self._failure,
            memberships=rounds.records(),
            live=view.live,
            stall=self._stall,
            overdue=rounds.overdue(),
            stuck=rounds.stuck(),
            unreachable=rounds.unreachable(),
            repeated_steps=rounds.repeated_steps,
            snapshots_skipped=rounds.snapshots_skipped,
            snapshot_problem=rounds.snapshot_problem,
            files=self._files.report(),
        )

    def _update(self, **changes: Any) -> None:
        self._view = dataclasses.replace(self._view, **changes)
