"""Targets: frames of an authenticated peer, and the messages of a service to an agent."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from agent.fuzz.test_frames import AGENT, BEAT, SERVICE, STORE
from agent.fuzz.test_orders import CHANGE, FULL, member
from ddpjob_agent.c10d.protocol import Op, ProtocolError, Request
from ddpjob_agent.net.framing import Connection, FramingError, RejectedError
from ddpjob_agent.net.service_connection import ServiceConnection
from ddpjob_agent.net.sockets.listening import STREAM_BYTES
from ddpjob_agent.net.store_requests import StaleMembershipError
from ddpjob_agent.worker.decisions import orders
from ddpjob_protocol.messages.membership import Member
from fuzz.target import Form, Target, of_json, to_json
from support import fake_time
from support.fuzzing import connection
from support.keys import credential

ME = Member("a", "a-1", "10.0.0.1", 1)
RUN = {
    "type": "run", "reach": {}, "live": False, "port": 5, "seal": "", "asked": False,
    "membership": {"id": "1.1.1", "members": [member("a"), member("b")], "cause": "started", "detail": ""},
}  # fmt: skip
STORED = {"type": "stored", "id": 1, "data": "dg==", "version": 2, "total": 0, "keeps": 1 << 20}
FORGET = {
    "type": "forget", "membership": "1.1.1",
    "keys": [{"key": "aw==", "below": 3, "upto": 0, "left": True}],
}  # fmt: skip
ORDERS = (
    RUN,
    {**RUN, "live": True, "asked": True},
    {"type": "stay", "leave": False, "after": None, "save": False},
    {"type": "halt", "planned": True},
    {"type": "finish", "ok": False, "reason": "boom"},
    {"type": "beat"},
    {"type": "ask"},
    {"type": "probe"},
    {"type": "refused", "reason": "replaced"},
    {"type": "restore", "membership": "1.1.1"},
    STORED,
    FORGET,
    FULL,
    CHANGE,
)


def sent_by(keys: Any, texts: list[bytes], rest: bytes = b"") -> bytes:
    """Return the frames of a peer that has these keys, and what follows them."""

    async def body() -> bytes:
        with connection(b"", STREAM_BYTES) as (reader, writer, sink):
            link = Connection(reader, writer, keys)
            for text in texts:
                link.send_json(text)
            return bytes(sink.data) + rest

    return fake_time.run(body())


def receive_frames(data: bytes) -> None:
    """Receive each line but the last as a frame, and then the last one as it is."""
    *texts, rest = data.split(b"\n")
    fake_time.run(_receive(sent_by(AGENT, texts, rest), len(texts)))


async def _receive(data: bytes, most: int) -> None:
    with connection(data, STREAM_BYTES) as (reader, writer, _):
        link = Connection(reader, writer, SERVICE)
        count = 0
        while (message := await link.receive()) is not None:
            assert isinstance(message["type"], str)
            count += 1
        assert count <= most


def follow_orders(value: Any) -> None:
    """Have an agent with open requests follow the messages of its service."""
    if isinstance(value, list):
        fake_time.run(_follow(sent_by(SERVICE, list(to_json(*value)))))


async def _follow(data: bytes) -> None:
    state = orders.AgentState(ME)

    def receive(order: Any) -> None:
        effects = orders.follow(state, order, finished=False)
        if effects.store:
            link.bind_store(effects.store)

    link = ServiceConnection("", 0, credential("a"), lambda: orders.hello_message(state), receive)
    link.bind_store("1.1.1")
    asked = [Request(Op.SET, (b"k",), (b"v",)), Request(Op.WAIT, (b"never",))]
    tasks = [asyncio.ensure_future(link.execute(each, "1.1.1")) for each in asked]
    await asyncio.sleep(0)
    with connection(data, STREAM_BYTES) as (reader, writer, _):
        try:
            await link._run_session(Connection(reader, writer, AGENT))
        finally:
            link.unbind_store(link.membership)
            for task in tasks:
                task.cancel()
                with contextlib.suppress(
                    asyncio.CancelledError, StaleMembershipError, ProtocolError
                ):
                    await task


TARGETS = (
    Target(
        "frames",
        Form.BYTES,
        receive_frames,
        (b"\n".join([*to_json(BEAT, STORE), b""]), b"\x00\x00\x00\x02{}" + bytes(16)),
        (FramingError,),
    ),
    Target(
        "agent",
        Form.JSON,
        of_json(follow_orders),
        to_json(*([each, {"type": "halt"}] for each in ORDERS), [RUN, STORED, FORGET]),
        (FramingError, RejectedError),
    ),
)
