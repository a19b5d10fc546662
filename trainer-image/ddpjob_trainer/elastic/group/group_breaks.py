"""Breaks of the process group: which errors mean one, and the wait for the next membership.

An error is a break if a process group raised it, or if the agent has ended the membership. An error
of unclear origin is a break only if the agent ends the membership soon. All others are the
script's: they reach the user with their traceback.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Protocol

from ddpjob_trainer.elastic.group.break_errors import is_group_error, may_be_group_error
from ddpjob_trainer.errors import SnapshotError

if TYPE_CHECKING:
    from ddpjob_protocol.messages.process import Assignment

NEWS_SECONDS = 60.0  # seconds after a broken group in which a new membership must arrive
CONFIRM_SECONDS = 10.0  # seconds in which the agent must confirm a break of unclear origin

_log = logging.getLogger("ddpjob")


class Agent(Protocol):
    """The part of the connection to the agent that decides about breaks."""

    @property
    def assignment(self) -> Assignment: ...  # noqa: D102 - see AgentConnection
    def is_superseded(self) -> bool: ...  # noqa: D102
    def wait_for_change(self, assignment: Assignment, seconds: float) -> bool: ...  # noqa: D102
    def wait_until_superseded(self, seconds: float, why: str) -> bool: ...  # noqa: D102


class GroupBreaks:
    """The breaks of this process's groups; without an agent, no error is one."""

    def __init__(self, agent: Agent | None) -> None:
        self._agent = agent
        self.is_broken = False  # from a break until the first step in another group

    @property
    def has_agent(self) -> bool:
        """True if an agent assigns another membership after a break."""
        return self._agent is not None

    def is_break(self, error: BaseException) -> bool:
        """Return whether an exception means a broken group, not a faulty script.

        Block for at most CONFIRM_SECONDS if only the agent knows.
        """
        if self._agent is None or not isinstance(error, Exception):
            return False
        if isinstance(error, SnapshotError):
            return False
        if self._agent.is_superseded() or is_group_error(error):
            return True
        return may_be_group_error(error) and self._is_confirmed(self._agent)

    def await_assignment(self, error: BaseException) -> None:
        """Wait for the membership after a broken group; raise the error if none arrives."""
        assert self._agent is not None
        self.is_broken = True
        _log.info("the group broke: %s", error)
        if not self._agent.wait_until_superseded(NEWS_SECONDS, str(error).partition("\n")[0]):
            raise error

    def handle(self, error: Exception) -> None:
        """Wait for the next membership; raise the error if it is not a break, or none arrives."""
        if not self.is_break(error):
            raise error
        self.await_assignment(error)

    def _is_confirmed(self, agent: Agent) -> bool:
        """Return whether the agent ends the membership within CONFIRM_SECONDS."""
        until = time.monotonic() + CONFIRM_SECONDS
        while not agent.is_superseded():
            left = until - time.monotonic()
            if left <= 0 or not agent.wait_for_change(agent.assignment, left):
                return agent.is_superseded()
        return True
