"""The answers to store requests, and what a request of torchrun's rendezvous is answered with.

May not: execute a request, or know which workers are members.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ddpjob_agent.c10d.budget import ANSWER_BYTES
from ddpjob_agent.c10d.protocol import BLOCKING, Op

if TYPE_CHECKING:
    from ddpjob_agent.c10d.protocol import Request
    from ddpjob_agent.c10d.writes import Write
    from ddpjob_protocol.messages.agent import Message

TORCHRUN_KEY = b"/torch.rendezvous."  # prefix of the keys of torchrun's rendezvous


class Answer(NamedTuple):
    """The answer to a request; a worker gets it again until it has confirmed it."""

    reply: bytes = b""
    version: int = 0
    total: int = 0
    refused: str = ""
    overtaken: bool = False  # the membership has changed

    def fields(self) -> Message:
        """Return the fields of the message beside the reply."""
        return {name: value for name, value in self._asdict().items() if value and name != "reply"}


class UnsettledAnswer(NamedTuple):
    """An answer that may get lost; without the values that the request itself has."""

    answer: Answer
    writes: tuple[Write, ...]

    @property
    def size(self) -> int:
        """Return the bytes that it counts."""
        keys = sum(ANSWER_BYTES + len(write.key) for write in self.writes)
        return keys + len(self.answer.reply)


def may_wait(request: Request) -> bool:
    """Return whether the answer may wait for other workers."""
    return request.op in BLOCKING or any(key.startswith(TORCHRUN_KEY) for key in request.keys[:1])


def is_join(request: Request) -> bool:
    """Return whether the request joins a torchrun rendezvous.

    Without an expected value, the request only creates the key.
    """
    is_torchrun = request.op is Op.COMPARE_SET and request.keys[0].startswith(TORCHRUN_KEY)
    return is_torchrun and request.values[0] != b""


def reads_rendezvous(request: Request) -> bool:
    """Return whether the answer is the state of a rendezvous: of a read, or of a join that failed."""
    is_read = request.op is Op.GET and request.keys[0].startswith(TORCHRUN_KEY)
    return is_read or is_join(request)
