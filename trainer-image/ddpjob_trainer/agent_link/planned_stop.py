"""In snapshot mode: stops all processes after one step, so that a planned change loses no step.

Every change of the membership restarts all processes. Processes that report each step can agree on
a stop step. They save a snapshot after the stop step and wait for their end. Does not import torch;
does not know the saved state.
"""

from __future__ import annotations

import os
import sys
import threading

from ddpjob_protocol.environment import ENV_GROUP_SOCKET, ENV_LIVE, ENV_MEMBERSHIP
from ddpjob_protocol.messages.process import ProcessMessage
from ddpjob_trainer.agent_link.connection import AgentConnection


class PlannedStop:
    """The connection through which one process learns its stop step."""

    def __init__(self, path: str) -> None:
        self._agent = AgentConnection(path, int(os.environ.get("LOCAL_RANK", "0")))
        rank = os.environ.get("RANK", "")
        self._agent.start(
            ProcessMessage.STOPS,
            membership=os.environ.get(ENV_MEMBERSHIP, ""),
            rank=int(rank) if rank.isdecimal() else None,
        )

    def is_due_at(self, step: int) -> bool:
        """Return whether the process must stop after `step` steps; wait until this is known."""
        self._agent.report_step(step, sys.maxsize)
        while True:
            assignment = self._agent.assignment
            if assignment.last_step is not None and step > assignment.last_step:
                return True
            if self._agent.may_start_step(step):
                return False
            self._agent.wait_for_change(assignment)

    def ready(self) -> None:
        """Report that this process has stopped and its state is saved."""
        self._agent.send(ProcessMessage.STOPPED)

    def wait(self) -> None:
        """Wait until the agent ends this process."""
        threading.Event().wait()


def connect() -> PlannedStop | None:
    """Connect to the agent; return None without one, and in live mode."""
    path = os.environ.get(ENV_GROUP_SOCKET)
    return PlannedStop(path) if path and os.environ.get(ENV_LIVE) != "1" else None
