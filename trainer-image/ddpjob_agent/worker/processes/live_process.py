"""One process in live mode, as its agent sees it: the state it reported, and its connection.

This module makes no decisions.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ddpjob_protocol.codec import encode
from ddpjob_protocol.messages.membership import MembershipId
from ddpjob_protocol.messages.process import ProcessMessage

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping

    from ddpjob_protocol.messages.agent import Message
    from ddpjob_protocol.messages.process import Assignment


class LiveProcess:
    """One connected training process. Times are the event loop's seconds."""

    def __init__(self, writer: asyncio.StreamWriter, local_rank: int) -> None:
        self.writer = writer
        self.local_rank = local_rank
        self.promise: int | None = None
        self.entered = ""  # membership
        self.arrived = ""
        self.where: Any = None
        self.line = ""  # of the script, at which the main thread is
        self.moved_at = 0.0
        self.last_message_at = 0.0
        self.finished_in = ""  # the membership in which it has done its last step
        self.stops = False  # the process does not stay, but accepts a last step
        self.stopped = False
        self.asked_to_leave = False  # True until the process answers the request for its state
        self.left: int | None = None  # step of the state that the process left

    def on_message(self, answer: ProcessMessage, message: Message, now: float) -> None:
        """Record a message of the process."""
        self.last_message_at = now
        if answer is ProcessMessage.PROMISE:
            self.promise = message["step"]
        elif answer is ProcessMessage.AT:
            if message.get("free") or message["where"] != self.where:
                self.moved_at = now
            self.where, self.line = message["where"], message.get("line") or ""
        elif answer is ProcessMessage.ARRIVED:
            self.arrived, self.entered = message["membership"], ""
        elif answer is ProcessMessage.ENTERED:
            self.arrived = self.entered = message["membership"]
        elif answer is ProcessMessage.FINISHED:
            self.finished_in = message.get("membership") or self.entered
        elif answer is ProcessMessage.LEFT:
            self.asked_to_leave, self.left = False, message.get("step")
        self.stops |= answer is ProcessMessage.STOPS
        self.stopped |= answer is ProcessMessage.STOPPED

    def assign(self, assignment: Assignment) -> None:
        """Send an assignment to the process."""
        self.send(encode(assignment))

    def send(self, words: Mapping[str, Any]) -> None:
        """Send one JSON line."""
        self.writer.write(json.dumps(words).encode() + b"\n")


def is_superseded(entered: str, assignment: Assignment) -> bool:
    """Return whether a process must leave the membership `entered` at once for this assignment."""
    inside = MembershipId.parse(entered)
    if assignment.membership is None:
        return assignment.last_step is None
    return assignment.membership.id > inside and assignment.membership.stops_at_once(inside)
