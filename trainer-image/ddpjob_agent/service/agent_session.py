"""The session of one connected agent: what it was ordered and asked last."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddpjob_agent.registry.order_text import Order, RunPart
from ddpjob_agent.service.c10d_session import StoreSession

if TYPE_CHECKING:
    from ddpjob_agent.net.framing import Connection
    from ddpjob_protocol.messages.membership import Member

ASK = b'{"type":"ask"}'


class AgentSession:
    """A connected agent."""

    def __init__(self, connection: Connection, member: Member) -> None:
        self.connection = connection
        self._base: RunPart | None = None  # that the next `run` order is a difference to
        self.member = member
        self.worker = member.worker
        self.order: Order | None = None
        self.store = StoreSession(connection, member.worker)
        self._asked_at = -1.0

    def give(self, order: Order) -> None:
        """Send the order if it differs from the last one."""
        if order != self.order:
            self.connection.send_json(order.to_json(self._base))
            self.order = order
            if isinstance(order.common, RunPart):
                self._base = order.common

    def ask(self, since: float, now: float) -> None:
        """Ask for a heartbeat, once for a decision that waits for a message since then."""
        if self._asked_at < since <= now:
            self._asked_at = now
            self.connection.send_json(ASK)

    def close(self) -> None:
        """Close the connection; requests to the store that wait end with it."""
        self.connection.close()
        self.store.close()
