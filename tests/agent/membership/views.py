"""Builders for what the membership policy decides by."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

from ddpjob_agent.membership.state import MembershipState, WorkerState
from ddpjob_agent.registry.orders import Orders
from ddpjob_protocol.messages.agent import Failure
from ddpjob_protocol.messages.control import Expectation, Policy
from ddpjob_protocol.messages.membership import Cause, Member, Membership, MembershipId
from support.keys import SEAL

if TYPE_CHECKING:
    from ddpjob_agent.registry.state.registry_state import RegistryState

POLICY = Policy(settle=3, startup_wait=300, min_between_joins=300, max_join_wait=900, backoff=5)
NOW = 1000.0


def worker(name: str, **changes: Any) -> WorkerState:
    member = Member(name, f"{name}-first", "127.0.0.1", 1)
    base = WorkerState(member, registered_at=0.0, last_seen=NOW)
    return dataclasses.replace(base, **changes)


def hello(member: Member, **changes: Any) -> dict[str, Any]:
    """Return the message of an agent that registers."""
    return {
        "member": dataclasses.asdict(member), "membership": None, "running": False, "live": False,
        "ready": False, "finished": False, "stops": False, "done": False, "failure": None,
        **changes,
    }  # fmt: skip


def order_for(state: RegistryState, worker: str, now: float) -> dict[str, Any]:
    """Return the order for one worker, as its agent reads it."""
    orders = Orders(state, SEAL)
    orders.update(now)
    order: dict[str, Any] = json.loads(orders.order_for(worker).to_json())
    return order


def membership(*names: str, n: int = 1) -> Membership:
    members = tuple(Member(name, f"{name}-first", "127.0.0.1", 1) for name in names)
    return Membership(MembershipId(1, 1, n), members, Cause.STARTED, "")


def view(*workers: WorkerState, expected: str = "", **changes: Any) -> MembershipState:
    names = tuple(expected.split() or [w.member.worker for w in workers])
    base = MembershipState(
        policy=POLICY, workers=workers, term=1, boot=1, expectation=Expectation(names)
    )
    return dataclasses.replace(base, **changes)


def running(current: Membership, *workers: WorkerState, **changes: Any) -> MembershipState:
    return view(*workers, current=current, running=True, **changes)


def failure(**changes: Any) -> Failure:
    return dataclasses.replace(Failure(at=NOW, summary="rank 0: boom"), **changes)


def names(formed: Membership | None) -> list[str]:
    assert formed is not None
    return [member.worker for member in formed.members]
