"""A service and agents in a simulated time: some freeze, are starved, or only seem so."""

from __future__ import annotations

from typing import Any

from agent.membership.views import hello
from ddpjob_agent.registry.decisions import decide
from ddpjob_agent.registry.effects import Effect
from ddpjob_agent.registry.messages import on_message
from ddpjob_agent.registry.registration import (
    extend_deadlines,
    on_expectation,
    on_heartbeat,
    on_hello,
    on_look,
)
from ddpjob_agent.registry.state.registry_state import initial_state
from ddpjob_protocol.messages.control import Expectation, Policy
from ddpjob_protocol.messages.membership import Cause, Member

MOMENT = 0.05  # seconds between two looks at everything
STEP, REPORT, BEAT, LOOK, TURN = 2, 4, 20, 3, 10  # in moments.
PULSE = 7  # moment of each BEAT at which the first process sends its heartbeat.
ANSWER = 0.05  # seconds that an agent takes to answer a question, or to send a heartbeat


class Agent:
    """An agent and its processes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_frozen = False
        self.answer = ANSWER
        self.sends_at: list[float] = []
        self.clock = 0.0  # that its clock is ahead since the last step


class World:
    """A job that steps ten times a second; `a` reports its steps.

    After a report the next one is due with a later step, or with the process's heartbeat.
    """

    def __init__(self, names: str = "abc", *, live: bool = True, steps: bool = True) -> None:
        self.policy = Policy(settle=0, minimum=1)
        self.state = initial_state(1, 1, 0.0)
        self.moments = 0
        self.agents = {name: Agent(name) for name in names}
        self.trains = True
        self.is_paused = False  # the service
        self.reports_steps = steps
        self.step, self.stepped_at, self.reported = 0, 0.0, 0
        self._report_from = 0  # moment
        self._unread: list[tuple[str, dict[str, Any]]] = []
        self._turn_at = 0.0
        on_expectation(self.state, Expectation((*names,), policy=self.policy), self.now)
        for name in names:
            member = Member(name, f"{name}-first", "127.0.0.1", 1)
            on_hello(self.state, hello(member, live=live, ready=live, running=True), self.now)
        decide(self.state, self.now)

    @property
    def now(self) -> float:
        return 1000.0 + self.moments * MOMENT

    def freeze(self, *names: str) -> None:
        """Freeze whole workers: the collectives of all stop."""
        self.trains = False
        for name in names:
            self.agents[name].is_frozen = True

    def run(self, seconds: float) -> None:
        """Let time pass."""
        for _ in range(round(seconds / MOMENT)):
            self.moments += 1
            if self.trains and self.moments % STEP == 0:
                self.step, self.stepped_at = self.step + 1, self.now
            for agent in self.agents.values():
                if not agent.is_frozen:
                    self._send(agent)
            if not self.is_paused:
                self._serve()

    def pause(self, seconds: float) -> None:
        """Pause the whole machine."""
        self.moments += round(seconds / MOMENT)
        for agent in self.agents.values():
            agent.sends_at = [at + seconds for at in agent.sends_at]

    def loss_after(self, limit: float = 20.0) -> float | None:
        """Return the seconds until the next loss; None if there is none within the limit."""
        began = self.now
        while self.now < began + limit:
            self.run(MOMENT)
            if self.lost:
                return round(self.now - began, 2)
        return None

    @property
    def lost(self) -> str:
        """The names that are not in the membership."""
        current = self.state.current
        assert current
        assert current.cause in (Cause.STARTED, Cause.LOST)
        return "".join(self.agents.keys() - {member.worker for member in current.members})

    def _send(self, agent: Agent) -> None:
        if (self.moments + ord(agent.name)) % BEAT == 0:
            agent.sends_at.append(self.now + agent.answer)
        due = [at for at in agent.sends_at if at <= self.now]
        agent.sends_at = [at for at in agent.sends_at if at > self.now]
        age = self.now - self.stepped_at + agent.clock
        steps = {"step": self.step, "step_age": max(0.0, age)} if self.reports_steps else {}
        if due:
            beat: dict[str, Any] = {"type": "beat", "processes": [], **steps}
            self._unread.append((agent.name, beat))
        if agent.name == "a" and self._is_report_due():
            self.reported, self._report_from = self.step, self.moments + REPORT
            report = {"event": "step", "step": self.step}
            membership = str(self.state.current and self.state.current.id)
            message = {"type": "report", "membership": membership, "report": report, **steps}
            self._unread.append((agent.name, message))

    def _is_report_due(self) -> bool:
        if not self.reports_steps or self.step <= self.reported:
            return False
        is_done_now = self.stepped_at == self.now
        return (is_done_now and self.moments >= self._report_from) or self.moments % BEAT == PULSE

    def _serve(self) -> None:
        effect = Effect.NOTHING
        for name, message in self._unread:
            effect = max(effect, on_heartbeat(self.state, name, self.now))
            effect = max(effect, on_message(self.state, name, message, self.now))
        self._unread.clear()
        if self.moments % LOOK == 0:
            found, asked = on_look(self.state, self.now)
            effect = max(effect, found)
            for name in asked:
                agent = self.agents[name]
                agent.sends_at.append(self.now + agent.answer)
        if effect is Effect.TURN or self.now >= self._turn_at:
            if self.now - self._turn_at > 1.0:
                extend_deadlines(self.state, self.now - self._turn_at)
            again = decide(self.state, self.now)
            latest = self.now + TURN * MOMENT
            self._turn_at = latest if again is None else max(self.now, min(again, latest))
