"""Messages of an agent for the c10d store: executed, or refused; the store still serves the others."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from agent.membership.views import NOW, hello
from ddpjob_agent.c10d.budget import Hold
from ddpjob_agent.c10d.protocol import MAX_BYTES, Op, Request, encode_request
from ddpjob_agent.c10d.writes import MAX_VERSION
from ddpjob_agent.net.framing import Connection, FrameKeys
from ddpjob_agent.net.sockets.listening import STREAM_BYTES
from ddpjob_agent.registry.decisions import decide
from ddpjob_agent.registry.registration import on_expectation, on_hello
from ddpjob_agent.registry.state.registry_state import RegistryState, initial_state
from ddpjob_agent.service.c10d_session import StoreSession
from ddpjob_agent.service.c10d_stores import MembershipStores
from ddpjob_protocol.codec import DecodeError, encode
from ddpjob_protocol.messages.control import Expectation, Policy
from ddpjob_protocol.messages.membership import Cause, Member, Membership, MembershipId
from ddpjob_protocol.parsers.report_check import check_message
from support.fuzzing import connection, fuzz, measured, mutated, mutated_json, run, size_of

FIRST = "1.1.1"
LINK = FrameKeys(b"of the service", b"of the agent")
MEMBERS = tuple(Member(name, f"{name}-first", "127.0.0.1", 1) for name in ("a", "b"))
REQUESTS = (
    Request(Op.SET, (b"k",), (b"v",)),
    Request(Op.ADD, (b"n",), number=5),
    Request(Op.COMPARE_SET, (b"/torch.rendezvous.x",), (b"", b"state")),
    Request(Op.WAIT, (b"never",)),
    Request(Op.QUEUE_PUSH, (b"q",), (b"v",)),
    Request(Op.QUEUE_POP, (b"q",)),
    Request(Op.DELETE_KEY, (b"k",)),
    Request(Op.BARRIER, (b"b",), number=2),
)
WRITES = [
    {"kind": 0, "key": "aw==", "version": 3, "data": "dg=="},
    {"kind": 2, "key": "cQ==", "version": 4, "data": "dg=="},
    {"kind": 3, "key": "cQ==", "version": 4, "data": None},
]
KEYS = [{"key": "aw==", "below": 3, "upto": 0, "left": True}]
OTHERS: tuple[dict[str, Any], ...] = (
    {"type": "cancel", "id": 1},
    {"type": "writes", "membership": FIRST, "first": True, "writes": WRITES},
    {"type": "writes", "membership": FIRST, "writes": WRITES, "version": 9},
    {"type": "forgot", "membership": FIRST, "keys": KEYS},
)


def store(data: bytes, number: int, more: bool) -> dict[str, Any]:
    text = base64.b64encode(data).decode()
    return {
        "type": "store",
        "id": number,
        "membership": FIRST,
        "data": text,
        "more": more,
        "settled": 1,
    }


requests = st.builds(
    store,
    mutated(st.sampled_from(REQUESTS).map(encode_request)),
    st.integers(1, 3),
    st.sampled_from([False, False, True]),
)
messages = mutated_json(requests | st.sampled_from(OTHERS), 1)


def job(*, restarted: bool) -> RegistryState:
    """Return the state of a service with two members; a restarted one lacks its store."""
    state = initial_state(term=1, boot=1, wall_offset=0.0)
    on_expectation(state, Expectation(("a", "b"), policy=Policy()), NOW)
    held = Membership(MembershipId.parse(FIRST), MEMBERS, Cause.STARTED, "") if restarted else None
    for member in MEMBERS:
        on_hello(state, {**hello(member), "membership": encode(held), "running": restarted}, NOW)
    decide(state, NOW)
    return state


async def hear(sent: list[Any], *, restarted: bool) -> bytes:
    """Have a worker send these messages; return what it receives, after the other was served."""
    stores = MembershipStores(job(restarted=restarted))
    stores.sync_membership()
    with connection(b"", STREAM_BYTES) as (reader, writer, sink):
        session = StoreSession(Connection(reader, writer, LINK), "a")
        for message in sent:
            try:
                session.on_message(stores, check_message(message))
            except DecodeError as error:
                assert len(str(error)) < 1000
            session.on_beat(stores, {"settled": 2})
            await asyncio.sleep(0)
        session.close()
        for worker in ("a", "b"):
            if stores.lacks(worker):
                stores.restore(
                    worker, {"membership": FIRST, "first": True, "writes": [], "version": 9}
                )
        ping = encode_request(Request(Op.ADD, (b"of b",), number=1))
        answer = await stores.answer("b", 1, FIRST, ping, Hold(stores.budget, "b"))
        assert answer.reply == (1).to_bytes(8, "little")
        assert 0 < answer.version < MAX_VERSION + 100
        return bytes(sink.data)


@fuzz(150)
@given(st.lists(messages, min_size=1, max_size=6), st.booleans())
@example([{**OTHERS[2], "version": 2**63 - 1}], True)
@example([{**OTHERS[2], "writes": [{**WRITES[0], "version": 2**62 - 1}]}], True)
@example([{**OTHERS[3], "keys": [{**KEYS[0], "below": 10**400}]}], False)
@example([store(b"x" * 300_000, 1, more=True)] * 9, False)
def test_messages_are_executed_or_refused(sent: list[Any], restarted: bool) -> None:
    sent = [each for each in sent if isinstance(each, dict) and isinstance(each.get("type"), str)]
    sent = [each for each in sent if each["type"] in ("store", "cancel", "writes", "forgot")]
    data = measured(lambda: run(hear(sent, restarted=restarted)), size_of(sent), calls=1000)
    assert len(data) < 1 << 20


def test_a_wait_that_is_cancelled_at_once_is_answered() -> None:
    """The task of the request has not begun; without an answer, the worker would wait forever."""

    async def body() -> bytes:
        stores = MembershipStores(job(restarted=False))
        stores.sync_membership()
        with connection(b"", STREAM_BYTES) as (reader, writer, sink):
            session = StoreSession(Connection(reader, writer, LINK), "a")
            wait = encode_request(Request(Op.WAIT, (b"never",)))
            session.on_message(stores, store(wait, 7, more=False))
            session.on_message(stores, {"type": "cancel", "id": 7})
            await asyncio.sleep(1)
            return bytes(sink.data)

    assert b'{"type":"stored","id":7}' in run(body())


def test_the_parts_of_a_request_are_bounded() -> None:
    """A worker that never ends a request is refused before its parts fill the memory."""

    async def body() -> bytes:
        stores = MembershipStores(job(restarted=False))
        stores.sync_membership()
        with connection(b"", STREAM_BYTES) as (reader, writer, sink):
            session = StoreSession(Connection(reader, writer, LINK), "a")
            part = store(bytes(1 << 20), 1, more=True)
            refused = 0
            for _ in range(2 * MAX_BYTES >> 20):
                try:
                    session.on_message(stores, part)
                except DecodeError:
                    refused += 1
            assert refused == 1
            return bytes(sink.data)

    assert b"refused" in run(body())
