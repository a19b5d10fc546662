"""At L1: the step after which everybody stops for a planned change, so that it costs no step.

All processes start again with every change of the membership. Those that say after each step how
far they are can be told when: after a step that all agree on, when it is saved. Then they wait to
be ended. Knows nothing of torch, nor of what is saved.
"""

from __future__ import annotations

import os
import sys
import threading

from ddpjob_protocol.environment import ENV_GROUP_SOCKET, ENV_LIVE, ENV_MEMBERSHIP
from ddpjob_protocol.process import ProcessMessage
from ddpjob_trainer.agent_link.connection import AgentConnection


class PlannedStop:
    """The line of one process to its agent, by which it is told."""

    def __init__(self, path: str) -> None:
        self._line = AgentConnection(path, int(os.environ.get("LOCAL_RANK", "0")))
        self._line.start(ProcessMessage.STOPS, membership=os.environ.get(ENV_MEMBERSHIP, ""))

    def is_due_at(self, step: int) -> bool:
        """Whether this many steps are those after which to stop; waits while that is not known."""
        self._line.report_step(step, sys.maxsize)
        while True:
            place = self._line.assignment
            if place.last_step is not None and step > place.last_step:
                return True
            if self._line.may_start_step(step):
                return False
            self._line.wait_for_change(place)

    def ready(self) -> None:
        """Nothing of this process is needed any more."""
        self._line.send(ProcessMessage.STOPPED)

    def wait(self) -> None:
        """To be ended."""
        threading.Event().wait()


def connect() -> PlannedStop | None:
    """None without an agent, and where processes stay over changes (L2)."""
    path = os.environ.get(ENV_GROUP_SOCKET)
    return PlannedStop(path) if path and os.environ.get(ENV_LIVE) != "1" else None
