"""The c10d store of the current membership, which agents use over their connections.

Each membership has a new store, so no process ever reads a key of an older membership. After a
restart of the service, the store answers only once all members have restored their entries.

The first torchrun to join a rendezvous would poll again only after a second. Therefore the store
answers a join only once all members have joined, with the state of that moment. torchrun handles
the answer as a lost race, finds itself in the state, and continues at once (docs/adr/0013).

May not: open connections, or decide which workers are members; `registry.decisions` does.
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
from ddpjob_agent.c10d.torchrun_ranks import TorchrunRanks
from ddpjob_protocol.codec import decode, encode

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ddpjob_agent.registry.state import RegistryState
    from ddpjob_protocol.membership import Member
    from ddpjob_protocol.messages import Message

REMEMBERED_WRITES = 256  # per agent: answers to requests that it may send again after a reconnect
TORCHRUN_KEY = b"/torch.rendezvous."  # prefix of the keys of torchrun's rendezvous
GATHER_SECONDS = 10.0

log = logging.getLogger("ddpjob.store")

Answers = dict[str, "collections.OrderedDict[int, Message]"]


class MembershipStores:
    """The stores of one job's memberships; one at a time."""

    def __init__(self, state: RegistryState) -> None:
        self._state = state
        self._membership = ""
        self._ready = asyncio.Event()
        self._renew()

    def _renew(self) -> None:
        self._backend = StoreBackend(Store())
        self._state.ranks = TorchrunRanks()
        self._answers: Answers = {}  # answers to writes, by incarnation and request number
        self._arrived: set[str] = set()  # members whose torchrun has joined
        self._gathered = asyncio.Event()

    def sync_membership(self) -> None:
        """Start a new store for a new membership; answer once no member is unseen."""
        current, unseen = self._state.current, self._state.unseen
        membership = str(current.id) if current else ""
        if membership != self._membership:
            self._membership = membership
            self._renew()
            if unseen:  # a relearned membership: its torchruns have joined before
                self._gathered.set()
        if unseen:
            self._ready.clear()
        else:
            self._ready.set()

    def restore(self, worker: str, membership: str, entries: Iterable[Mapping[str, Any]]) -> None:
        """Restore the entries that a member wrote into the store of this membership."""
        if membership == self._membership:
            restored = [decode(Entry, item) for item in entries]
            self._backend.restore(restored)
            self._observe_ranks(worker, restored)

    async def answer(self, member: Member, message: Message) -> Message:
        """Answer an agent's request; execute a write once, even if the agent sends it again."""
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
        is_member = self._state.is_member(member.worker)
        if message["membership"] != self._membership or not is_member:
            return overtaken
        backend = self._backend
        try:
            request = decode_request(message["request"])
            applied = await backend.apply(request)
            reply = applied.reply
            self._observe_ranks(member.worker, applied.changed)
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

    def _observe_ranks(self, worker: str, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self._state.ranks.observe(worker, entry.key, entry.value)

    async def _gather(self, member: Member) -> None:
        """Wait until the torchrun of every member has joined, so that no torchrun has to poll."""
        current, gathered = self._state.current, self._gathered
        self._arrived.add(member.worker)
        if current and self._arrived.issuperset(current.by_worker):
            gathered.set()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(gathered.wait(), GATHER_SECONDS)


def _is_join(request: Request) -> bool:
    """Return whether the request joins a torchrun rendezvous.

    Without an expected value, the request only creates the key.
    """
    is_torchrun = request.op is Op.COMPARE_SET and request.keys[0].startswith(TORCHRUN_KEY)
    return is_torchrun and request.values[0] != b""
