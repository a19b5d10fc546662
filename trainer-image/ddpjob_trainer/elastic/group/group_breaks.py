"""Breaks of the process group: which errors mean one, and the wait for the next membership."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING

from torch import distributed

if TYPE_CHECKING:
    from ddpjob_trainer.agent_link.connection import AgentConnection

NEWS_SECONDS = 60.0  # seconds after a broken group in which a new membership must arrive
_BROKEN = re.compile(
    r"gloo|NCCL|nccl|Connection (closed|reset|refused)|Broken pipe|[Ss]ocket|process group"
)

_log = logging.getLogger("ddpjob")


class GroupBreaks:
    """The breaks of this process's groups; without an agent, no error is one."""

    def __init__(self, agent: AgentConnection | None) -> None:
        self._agent = agent
        self.is_broken = False  # from a break until the first step in another group

    @property
    def has_agent(self) -> bool:
        """True if an agent assigns another membership after a break."""
        return self._agent is not None

    def is_break(self, error: BaseException) -> bool:
        """Return whether an exception means a broken group, not a faulty script."""
        if self._agent is None or not isinstance(error, RuntimeError):
            return False
        known = isinstance(error, distributed.DistError) or bool(_BROKEN.search(str(error)))
        return known or self._agent.is_superseded()

    def await_assignment(self, error: BaseException) -> None:
        """Wait for the membership after a broken group; raise the error if none arrives."""
        assert self._agent is not None
        self.is_broken = True
        _log.info("the group broke: %s", error)
        if not self._agent.wait_until_superseded(NEWS_SECONDS, str(error).partition("\n")[0]):
            raise error

    def handle(self, error: RuntimeError) -> None:
        """Wait for the next membership; raise the error if it is no break, or none arrives."""
        if not self.is_break(error):
            raise error
        self.await_assignment(error)
