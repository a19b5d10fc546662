"""A service that receives the messages of three agents, on a clock of its own."""

from __future__ import annotations

import json
from typing import Any

from agent.membership.views import hello
from ddpjob_agent.registry.decisions import decide
from ddpjob_agent.registry.messages import on_message
from ddpjob_agent.registry.registration import on_expectation, on_hello
from ddpjob_agent.registry.report import build_report
from ddpjob_agent.registry.state.registry_state import initial_state
from ddpjob_protocol.codec import decode, encode
from ddpjob_protocol.messages.control import Expectation, Policy, Report, Stall
from ddpjob_protocol.messages.membership import Member

WALL = 1_700_000_000.0
NAMES = ("a", "b", "c")
POLICY = Policy(
    settle=0, stall_steps=20, stall_seconds=60, heartbeat_deadline=1e9, live_deadline=1e9
)


class Job:
    """A service that receives the messages of agents, on a clock of its own."""

    def __init__(self, policy: Policy = POLICY, *, live: bool = False) -> None:
        self.state = initial_state(1, 1, WALL)
        self.now = 0.0
        self.policy = policy
        self.live = live
        self.expect(*NAMES)
        for name in NAMES:
            self.hello(name)
        decide(self.state, self.now)

    def expect(self, *names: str, draining: tuple[str, ...] = ()) -> None:
        on_expectation(self.state, Expectation(names, draining, self.policy), self.now)

    def hello(self, name: str, **facts: Any) -> None:
        member = Member(name, f"{name}-first", "127.0.0.1", 1)
        usual = {"live": self.live, "ready": self.live, "running": True}
        on_hello(self.state, hello(member, **{**usual, **facts}), self.now)

    @property
    def id(self) -> str:
        return str(self.state.current and self.state.current.id)

    def step(self, number: int, after: float = 1.0, total: int | None = 1000) -> None:
        """The first process does this step, this many seconds after the last event."""
        self.stall_after(after)
        report = {"event": "step", "step": number, "total": total}
        message = {"type": "report", "membership": self.id, "report": report}
        on_message(self.state, "a", message, self.now)

    def steps(self, first: int, last: int, seconds: float = 1.0) -> None:
        for number in range(first, last + 1):
            self.step(number, seconds)

    def alive(self, *steps: int | None, where: str = "train.py:9", membership: str = "") -> None:
        """The processes report their steps; a process with None does not."""
        for rank, step in enumerate(steps):
            if step is not None:
                process = {"rank": rank, "step": step, "where": where, "age": 0.5}
                place = {"membership": membership or self.id}
                on_message(
                    self.state,
                    NAMES[rank],
                    {"type": "beat", "processes": [{**process, **place}]},
                    self.now,
                )

    def stall_after(self, seconds: float) -> Stall | None:
        """Return the stall that is reported after these further seconds."""
        self.now += seconds
        decide(self.state, self.now)
        return self.report().stall

    def report(self) -> Report:
        return decode(Report, json.loads(json.dumps(encode(build_report(self.state, 1)))))
