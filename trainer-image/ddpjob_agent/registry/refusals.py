"""The hellos that the service refuses, with the reason for the agent.

A key stays valid until its job ends. So the key of a worker whose pod is gone is refused by its name:
the operator expects the next worker of the slot. The operator still names a worker whose pod is being
deleted. A member registers until a membership without it has formed, because the others may wait for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddpjob_protocol.messages.agent import PROTOCOL

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ddpjob_agent.registry.state.registry_state import RegistryState
    from ddpjob_protocol.messages.agent import Message

INDEX_DIGITS = 3  # at least, in the name of a worker


def refusal_of(hello: Message, worker: str, state: RegistryState) -> str:
    """Return why the service refuses this hello, which has no forged membership; empty if it does not."""
    if hello["type"] != "hello" or hello["protocol"] != PROTOCOL:
        found = hello.get("protocol")
        return f"protocol {PROTOCOL} is spoken here, not {found}; use an agent of the service's version"
    expectation, current = state.view.expectation, state.current
    if expectation is None or worker in expectation.known:
        return ""
    is_member = hello.get("membership") if current is None else worker in current.by_worker
    successor = "" if is_member else _successor(worker, expectation.workers)
    return f"{worker} was replaced by {successor}, so its key is not valid" if successor else ""


def _successor(worker: str, expected: Iterable[str]) -> str:
    """Return the expected worker of the same slot with a higher number, or an empty text."""
    slot, number = _parts(worker)
    if not slot:
        return ""
    others = ((each, *_parts(each)) for each in expected)
    return next((name for name, at, other in others if at == slot and other > number), "")


def _parts(worker: str) -> tuple[str, int]:
    """Return slot and number of a name such as `digits-worker-001-2`; no slot for another name."""
    slot, _, number = worker.rpartition("-")
    index = slot.rpartition("-")[2]
    if len(index) < INDEX_DIGITS or not index.isdecimal() or not number.isdecimal():
        return "", 0
    return slot, int(number)
