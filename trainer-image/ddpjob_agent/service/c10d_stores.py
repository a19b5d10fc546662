"""The c10d store of the current membership, as agents ask for it over their connections.

Each membership has a fresh store, so that no process ever reads a key of an older one. After a
restart of the service nothing is answered before all members have given back what they wrote.

torchrun's first agent to join would look again only after a second. So whoever joins is answered
when all members have, with the state as it is then; torchrun takes that for a lost race, finds
itself in it, and goes on at once (docs/adr/0013).

May not: open connections, or decide who is a member; `registry` knows.
"""

from __future__ import annotations

import asyncio
import base64
import collections
import contextlib
import logging
from typing import TYPE_CHECKING, Any

from ddpjob_agent.c10d.protocol import Op, ProtocolError, Request, decode_request
from ddpjob_agent.c10d.server import StoreBackend
from ddpjob_agent.c10d.store import Entry, Store
from ddpjob_protocol.codec import decode, encode

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ddpjob_agent.service.registry import Registry
    from ddpjob_protocol.membership import Member
    from ddpjob_protocol.messages import Message

REMEMBERED_WRITES = 256  # per agent: what it may send again after its connection broke
TORCHRUN_KEY = b"/torch.rendezvous."  # under which torchrun's agents meet
GATHER_SECONDS = 10.0

log = logging.getLogger("ddpjob.store")

Answers = dict[str, "collections.OrderedDict[int, Message]"]


class MembershipStores:
    """One job's store."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._membership = ""
        self._ready = asyncio.Event()
        self._renew()

    def _renew(self) -> None:
        self._backend = StoreBackend(Store())
        self._answers: Answers = {}  # to writes, by incarnation and number
        self._arrived: set[str] = set()  # members whose torchrun has joined
        self._gathered = asyncio.Event()

    def sync_membership(self) -> None:
        """Look whether there is a new membership, and whether all of its members are back."""
        current, unseen = self._registry.current, self._registry.unseen
        membership = str(current.id) if current else ""
        if membership != self._membership:
            self._membership = membership
            self._renew()
            if unseen:  # relearned: their torchruns have met before
                self._gathered.set()
        if unseen:
            self._ready.clear()
        else:
            self._ready.set()

    def restore(self, membership: str, entries: Iterable[Mapping[str, Any]]) -> None:
        """Take back what a member wrote into the store of this membership."""
        if membership == self._membership:
            self._backend.restore([decode(Entry, item) for item in entries])

    async def answer(self, member: Member, message: Message) -> Message:
        """The answer to an agent's request; a write that is asked for again is done once."""
        number = message["id"]
        answers = self._answers.setdefault(member.incarnation, collections.OrderedDict())
        answer = answers.get(number)
        if answer is None:
            answer = await self._execute(member, message)
            if answer.get("entries"):
                answers[number] = answer
            if len(answers) > REMEMBERED_WRITES:
                answers.popitem(last=False)
        return answer

    async def _execute(self, member: Member, message: Message) -> Message:
        await self._ready.wait()
        overtaken = {"type": "stored", "id": message["id"], "overtaken": True}
        is_member = self._registry.is_member(member.worker)
        if message["membership"] != self._membership or not is_member:
            return overtaken
        backend = self._backend
        try:
            request = decode_request(message["request"])
            applied = await backend.apply(request)
            reply = applied.reply
            if applied.changed and _is_join(request):
                await self._gather(member)
                reply = await backend.execute(Request(Op.GET, request.keys))
        except ProtocolError as error:
            log.warning("%s: %s", member.worker, error)
            return {"type": "stored", "id": message["id"], "refused": True}
        return {
            "type": "stored",
            "id": message["id"],
            "reply": base64.b64encode(reply).decode(),
            "entries": [encode(entry) for entry in applied.changed],
        }

    async def _gather(self, member: Member) -> None:
        """Wait until the torchrun of every member has joined, so that none has to poll."""
        current, gathered = self._registry.current, self._gathered
        self._arrived.add(member.worker)
        if current and {each.worker for each in current.members} <= self._arrived:
            gathered.set()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(gathered.wait(), GATHER_SECONDS)


def _is_join(request: Request) -> bool:
    """Of a torchrun into its rendezvous; one that expects nothing only makes the key."""
    is_torchrun = request.op is Op.COMPARE_SET and request.keys[0].startswith(TORCHRUN_KEY)
    return is_torchrun and request.values[0] != b""
