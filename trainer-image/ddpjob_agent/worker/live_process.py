"""One live process (L2) as its agent knows it: what it said, and how to tell it something.

Decides nothing.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ddpjob_protocol.codec import encode
from ddpjob_protocol.membership import MembershipId
from ddpjob_protocol.process import Answer

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping

    from ddpjob_protocol.messages import Message
    from ddpjob_protocol.process import Place


class Process:
    """One connected training process. Times are the event loop's seconds."""

    def __init__(self, writer: asyncio.StreamWriter, local_rank: int) -> None:
        self.writer = writer
        self.local_rank = local_rank
        self.promise: int | None = None
        self.entered = ""  # membership
        self.arrived = ""
        self.where: Any = None
        self.moved_at = 0.0
        self.heard_at = 0.0
        self.finished = False
        self.stops = False  # it does not stay, but can be told after which step to stop
        self.stopped = False
        self.asked_to_leave = False  # its state, and has not answered
        self.left: int | None = None  # a state of so many steps

    def hear(self, answer: Answer, message: Message, now: float) -> None:
        """What it says of itself."""
        self.heard_at = now
        if answer is Answer.PROMISE:
            self.promise = int(message["step"])
        elif answer is Answer.AT and message["where"] != self.where:
            self.where, self.moved_at = message["where"], now
        elif answer is Answer.ARRIVED:
            self.arrived, self.entered = message["membership"], ""
        elif answer is Answer.ENTERED:
            self.arrived = self.entered = message["membership"]
        elif answer is Answer.LEFT:
            self.asked_to_leave, self.left = False, message["step"]
        self.stops |= answer is Answer.STOPS
        self.stopped |= answer is Answer.STOPPED
        self.finished |= answer is Answer.FINISHED

    def tell(self, place: Place) -> None:
        """What it is to do."""
        self.say(encode(place))

    def say(self, words: Mapping[str, Any]) -> None:
        """One line."""
        self.writer.write(json.dumps(words).encode() + b"\n")


def is_over(entered: str, place: Place) -> bool:
    """Whether who is in that membership, and told of this place, is to leave it at once."""
    inside = MembershipId.parse(entered)
    if place.membership is None:
        return place.after is None
    return place.membership.id > inside and place.membership.stops_at_once(inside)
