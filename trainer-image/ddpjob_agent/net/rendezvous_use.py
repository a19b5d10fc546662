"""The use of torchrun's rendezvous by a worker's command, and the warning if there is none.

A command that a shell or another program wraps may start a script without torchrun. Each worker
then trains by itself, and each may succeed. torchrun connects to the rendezvous when it starts, so
a command without a connection is a problem: after a time, or at once if the command succeeds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ddpjob_protocol.messages.warnings import AgentWarning, not_distributed

if TYPE_CHECKING:
    from ddpjob_protocol.messages.membership import Membership

RENDEZVOUS_SECONDS = 120.0  # a command may install packages or copy data before torchrun


class ExpectedUse(NamedTuple):
    """The membership whose rendezvous the command should use."""

    membership: str
    processes: int

    @classmethod
    def of(cls, membership: Membership) -> ExpectedUse:
        """Return the use that a membership expects."""
        return cls(str(membership.id), membership.world_size)


class RendezvousUse:
    """The use of the rendezvous by the command that started last."""

    def __init__(self) -> None:
        self._expected: ExpectedUse | None = None  # None: nothing expected, or already used
        self._since = 0.0
        self._reported = False

    def on_start(self, expected: ExpectedUse | None, now: float) -> None:
        """Record the start of a command."""
        self._expected, self._since, self._reported = expected, now, False

    def on_request(self, membership: str) -> AgentWarning | None:
        """Record a use of this membership's rendezvous; return the end of a reported problem."""
        if self._expected is None or membership != self._expected.membership:
            return None
        self._expected = None
        return not_distributed(membership, 0) if self._reported else None

    def on_exit(self, *, succeeded: bool) -> AgentWarning | None:
        """Record the end of the command; return the problem if it succeeded without any use."""
        expected, self._expected = self._expected, None
        if expected is None or self._reported or not succeeded:
            return None
        return not_distributed(*expected)

    def detect(self, now: float) -> AgentWarning | None:
        """Return the problem once, if the running command is without any use for too long."""
        late = now - self._since >= RENDEZVOUS_SECONDS
        if self._expected is None or self._reported or not late:
            return None
        self._reported = True
        return not_distributed(*self._expected)
