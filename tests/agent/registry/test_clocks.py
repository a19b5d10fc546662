"""Clocks of nodes that are wrong: the failure that came first is blamed, and not that of a slow clock."""

from __future__ import annotations

from typing import Any

import pytest

from agent.membership.views import NOW, hello
from ddpjob_agent.registry.decisions import decide
from ddpjob_agent.registry.messages import on_message
from ddpjob_agent.registry.registration import on_expectation, on_heartbeat, on_hello
from ddpjob_agent.registry.state.registry_state import RegistryState, initial_state
from ddpjob_protocol.codec import encode
from ddpjob_protocol.messages.control import Expectation, Policy
from ddpjob_protocol.messages.membership import Member

EPOCH = 1_700_000_000.0  # of the service, at its monotonic time 0
EXPECTED = Expectation(("a", "b"), policy=Policy(files=False))
MEMBERS = {name: Member(name, f"{name}-first", "127.0.0.1", 1) for name in EXPECTED.workers}


def job() -> RegistryState:
    state = initial_state(term=1, boot=1, wall_offset=EPOCH)
    on_expectation(state, EXPECTED, NOW)
    for member in MEMBERS.values():
        on_hello(state, hello(member), NOW)
    decide(state, NOW)
    return state


def failed(name: str, at: float, sent: float, fast: float) -> dict[str, Any]:
    """Facts of a failure, as an agent sends them whose clock is fast by this number of seconds."""
    clock = EPOCH + fast
    return {"failure": {"at": clock + at, "summary": f"{name} fails"}, "clock": clock + sent}


@pytest.mark.parametrize("by_hello", [False, True], ids=["message", "hello"])
@pytest.mark.parametrize("fast", [0.0, -1.0, -3600.0, 3600.0])
def test_the_first_failure_is_blamed(fast: float, *, by_hello: bool) -> None:
    state = job()
    assert state.current is not None
    first, second = NOW + 5.0, NOW + 8.0
    for name, at, wrong in (("a", first, max(0.0, fast)), ("b", second, min(0.0, fast))):
        facts = failed(name, at, at + 0.1, wrong)
        if by_hello:
            held = {"membership": encode(state.current), "running": True}
            on_hello(state, hello(MEMBERS[name], **held, **facts), at + 0.2)
        else:
            exited = {"type": "exited", "membership": "1.1.1", "live": False, **facts}
            on_message(state, name, exited, at + 0.2)
    for name in MEMBERS:
        on_heartbeat(state, name, second + 3)
    decide(state, second + 3)
    assert state.view.root_failure is not None
    assert state.view.root_failure.summary == "a fails"
    assert state.view.root_failure.at == pytest.approx(EPOCH + first, abs=1.0)
