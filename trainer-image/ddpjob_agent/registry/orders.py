"""The order for each worker; a function of the state alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddpjob_agent.membership.forming import leaves
from ddpjob_protocol.codec import encode
from ddpjob_protocol.control import ServiceState

if TYPE_CHECKING:
    from ddpjob_agent.membership.state import WorkerState
    from ddpjob_agent.registry.state import RegistryState
    from ddpjob_protocol.membership import Membership
    from ddpjob_protocol.messages import Message


def order_for(state: RegistryState, worker: str, now: float) -> Message:
    """Return the order for this worker.

    `run` the membership, `halt`, `stay` in memory, or `finish` when the job is over.
    """
    if state.is_over:
        ok = state.phase is ServiceState.COMPLETE
        return {"type": "finish", "ok": ok, "reason": state.reason}
    view, known = state.view, state.workers.get(worker)
    if view.current and view.running and state.is_member(worker):
        return {
            "type": "run",
            "membership": encode(view.current),
            "live": view.live,
            "asked": view.asked_at is not None,
            "last": _last_step_message(state, now),
            "files": _files_instruction(state, worker, now),
            "port": _port(state, view.current),
            "reach": _reach(state, view.current),
        }
    if known is None or not view.live or known.in_backoff(now):
        return {
            "type": "halt",
            "last": _last_step_message(state, now),
            "files": _files_instruction(state, worker, now),
            "planned": not view.lost and view.root_failure is None,
        }
    return _stay(state, known)


def _stay(state: RegistryState, known: WorkerState) -> Message:
    view, last = state.view, state.last_step
    after = last.step if last is not None and last.binds(known.member) else None
    leave = view.expectation is not None and leaves(view, known)
    save = not view.running and after is not None
    return {"type": "stay", "leave": leave, "after": after, "save": save}


def _port(state: RegistryState, membership: Membership) -> int | None:
    """Return the port that the first member reserves for the processes."""
    first = state.workers.get(membership.members[0].worker)
    return first.port if first else None


def _reach(state: RegistryState, membership: Membership) -> Message:
    """Return, by member, the port for the connectivity checks of the other members."""
    known = (state.workers.get(member.worker) for member in membership.members)
    return {each.member.worker: each.reach for each in known if each and each.reach}


def _last_step_message(state: RegistryState, now: float) -> Message | None:
    view, last = state.view, state.last_step
    if last is None:
        return None
    saved = view.live or last.is_done(state.workers.rows(), view.policy, now)
    return last.to_message(saved=saved)


def _files_instruction(state: RegistryState, worker: str, now: float) -> Message | None:
    return state.files.instruction_for(state.view, state.workers, worker, now)
