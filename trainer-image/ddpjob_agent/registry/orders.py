"""The order for each worker; a function of the state alone."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Callable

from ddpjob_agent.membership.forming import leaves
from ddpjob_agent.registry.order_text import CommonPart, Members, Order, RunPart
from ddpjob_agent.registry.state.file_sync import NO_INSTRUCTION
from ddpjob_protocol.messages.control import ServiceState

if TYPE_CHECKING:
    from ddpjob_agent.membership.state import WorkerState
    from ddpjob_agent.registry.state.registry_state import RegistryState
    from ddpjob_protocol.keys.membership_seal import MembershipSeal
    from ddpjob_protocol.messages.agent import Message
    from ddpjob_protocol.messages.membership import Membership


class Orders:
    """The orders of one state; `update` reads what many orders have in common."""

    def __init__(self, state: RegistryState, seal: MembershipSeal) -> None:
        self._state = state
        self._seal = seal
        self._now = 0.0
        self._files: Callable[[str], str] = lambda _: NO_INSTRUCTION
        self._common: dict[str, CommonPart] = {}  # by type of the order
        self._members: Members | None = None  # of the current membership

    def update(self, now: float) -> None:
        """Read the state once for all orders."""
        self._now = now
        state = self._state
        self._files = state.files.instructions(state.view, state.workers, now)
        last = _last_step_message(state, now)
        if state.is_over:
            ok = state.phase is ServiceState.COMPLETE
            self._keep(CommonPart({"type": "finish", "ok": ok, "reason": state.reason}))
        if state.current is not None and state.view.running:
            self._update_run(state.current, last)
        planned = not state.view.lost and state.view.root_failure is None
        self._keep(CommonPart({"type": "halt", "last": last, "planned": planned}))
        self._keep(CommonPart({"type": "stay"}))

    def _keep(self, new: CommonPart) -> None:
        """Keep the old part, with the orders that it has encoded, unless the new part differs."""
        old = self._common.get(new.key["type"])
        if old is None or old != new or not old.has_facts_of(new):
            self._common[new.key["type"]] = new

    def _update_run(self, current: Membership, last: Message | None) -> None:
        view = self._state.view
        if self._members is None or self._members.membership is not current:
            self._members = Members(current, self._seal.of(current))
        key = {
            "type": "run",
            "id": str(current.id),
            "live": view.live,
            "asked": view.asked_at is not None,
            "last": last,
            "stacks": self._state.hang.asked_at is not None,
        }
        port, reach = _port(self._state, current), _reach(self._state, current)
        self._keep(RunPart(key, self._members, port, reach))

    def order_for(self, worker: str) -> Order:
        """Return the order for this worker.

        `run` the membership, `halt`, `stay` in memory, or `finish` when the job is over.
        """
        state, now = self._state, self._now
        if state.is_over:
            return Order(self._common["finish"])
        view, known = state.view, state.workers.get(worker)
        files = f'{{"files":{self._files(worker)}}}'
        if view.current and view.running and state.is_member(worker):
            return Order(self._common["run"], files)
        if known is None or not view.live or known.in_backoff(now):
            return Order(self._common["halt"], files)
        return Order(self._common["stay"], json.dumps(_stay(state, known)))


def _stay(state: RegistryState, known: WorkerState) -> Message:
    view, last = state.view, state.last_step
    after = last.step if last is not None and last.binds(known.member) else None
    leave = view.expectation is not None and leaves(view, known)
    save = not view.running and after is not None
    return {"leave": leave, "after": after, "save": save}


def _port(state: RegistryState, membership: Membership) -> int | None:
    """Return the port that the first member reserves for the processes."""
    first = state.workers.get(membership.members[0].worker)
    return first.port if first else None


def _reach(state: RegistryState, membership: Membership) -> dict[str, int]:
    """Return, by member, the port for the connectivity checks of the other members."""
    known = (state.workers.get(member.worker) for member in membership.members)
    return {each.member.worker: each.reach for each in known if each and each.reach}


def _last_step_message(state: RegistryState, now: float) -> Message | None:
    view, last = state.view, state.last_step
    if last is None:
        return None
    saved = view.live or last.is_done(state.workers.rows(), view.policy, now)
    return last.to_message(saved=saved)
