"""A real service bounds what a peer sends, before and after it has proved a key."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.service.serving import Job, hello_of, run
from ddpjob_agent.net.framing import MAGIC, Connection, connect
from ddpjob_agent.net.parts import PART_BYTES
from ddpjob_agent.net.sockets.strangers import MOST_STRANGERS
from ddpjob_agent.service.frame_limits import HELLO_BYTES, MESSAGE_BYTES, MIB, STORE_BYTES
from ddpjob_protocol.codec import encode
from ddpjob_protocol.messages.membership import Cause, Member, Membership, MembershipId
from support.keys import credential

if TYPE_CHECKING:
    from ddpjob_protocol.messages.agent import Message

FLOOD = b"x" * (4 * MIB)


def peak(job: Job) -> int:
    """Return the most memory that the service has had, in bytes."""
    status = Path(f"/proc/{job.service.process.pid}/status").read_text()
    (found,) = re.findall(r"VmHWM:\s+(\d+) kB", status)
    return int(found) * 1024


async def flood(writer: asyncio.StreamWriter, data: bytes) -> None:
    """Send as much of the data as the service reads, until it ends the connection."""
    with contextlib.suppress(ConnectionError, asyncio.TimeoutError):
        writer.write(data)
        await asyncio.wait_for(writer.drain(), 2)


def padded(message: Message, size: int) -> bytes:
    """Return a message of this number of bytes."""
    text = json.dumps({**message, "padding": ""})
    return json.dumps({**message, "padding": "x" * (size - len(text))}).encode()


async def is_answered(agent: Connection) -> bool:
    """Return whether the service answers a heartbeat in this session."""
    agent.send({"type": "beat"})
    while (answer := await agent.receive()) is not None:
        if answer["type"] == "beat":
            return True
    return False


def test_strangers_take_little_memory_whatever_they_send(tmp_path: Path) -> None:
    async def body(job: Job) -> None:
        await job.expect("a")
        before = peak(job)
        heads = (
            MAGIC + bytes(16) + b"\xff" + b"n" * 255,
            b"PUT /expected HTTP/1.1\r\nContent-Length: 4000000\r\n\r\n",
            b"GET /",
        )
        opened = [
            await asyncio.open_connection("127.0.0.1", job.service.port)
            for _ in range(MOST_STRANGERS)
        ]
        floods = (
            flood(writer, head + FLOOD)
            for (_, writer), head in zip(opened, itertools.cycle(heads), strict=False)
        )
        await asyncio.gather(*floods)
        job.agent("a")
        await job.formed(1)
        assert peak(job) - before < 24 * MIB, "not 4 MiB of each"
        for _, writer in opened:
            writer.transport.abort()

    run(body, tmp_path)


def test_the_key_of_one_worker_takes_the_memory_of_one_hello(tmp_path: Path) -> None:
    async def body(job: Job) -> None:
        await job.expect("a")
        before = peak(job)
        text = padded(hello_of("c"), HELLO_BYTES)
        opened = []
        for _ in range(60):
            connection = await connect("127.0.0.1", job.service.port, credential("c"))
            opened.append(connection)
            connection._writer.write(len(text).to_bytes(4, "big") + text[:-1])
            with contextlib.suppress(ConnectionError):
                await asyncio.wait_for(connection.drain(), 60)
        job.agent("a")
        await job.formed(1)
        assert peak(job) - before < 60 * MIB, "not 60 times 4 MiB"
        for each in opened:
            each.close()

    run(body, tmp_path)


def test_a_worker_that_is_no_member_sends_no_long_frame(tmp_path: Path) -> None:
    async def body(job: Job) -> None:
        await job.expect("a")
        for text, is_read in (
            (padded(hello_of("b"), HELLO_BYTES), True),
            (padded(hello_of("b"), HELLO_BYTES + 1), False),
            (padded({"type": "odd"}, MESSAGE_BYTES), True),
            (padded({"type": "odd"}, MESSAGE_BYTES + 1), False),
        ):
            connection = await connect("127.0.0.1", job.service.port, credential("b"))
            if b"hello" not in text[:100]:
                connection.send(hello_of("b"))
            connection.send_json(text)
            assert await is_answered(connection) == is_read, len(text)
            connection.close()

    run(body, tmp_path)


def test_a_worker_that_is_no_member_sends_no_long_request(tmp_path: Path) -> None:
    """The first part is answered, and the others are not kept."""

    async def body(job: Job) -> None:
        await job.expect("a")
        job.agent("a")
        await job.formed(1)
        connection = await connect("127.0.0.1", job.service.port, credential("b"))
        connection.send(hello_of("b"))
        assert await is_answered(connection)
        before = peak(job)
        part = base64.b64encode(bytes(PART_BYTES)).decode()
        for _ in range(100):
            request = {"type": "store", "id": 7, "membership": "1.1.1", "data": part, "more": True}
            connection.send(request)
            await connection.drain()
        answer: Message | None = {"type": "none yet"}
        while answer and answer["type"] != "stored":
            answer = await connection.receive()
        assert answer == {"type": "stored", "id": 7, "overtaken": True}
        assert await is_answered(connection)
        assert peak(job) - before < 24 * MIB, "not 50 MiB"
        connection.close()

    run(body, tmp_path)


def test_a_member_sends_the_writes_of_its_store(tmp_path: Path) -> None:
    async def body(job: Job) -> None:
        await job.expect("a")
        a = job.agent("a")
        await job.formed(1)
        assert a.link._connection is not None
        connection = a.link._connection
        connection.send_json(padded({"type": "odd"}, STORE_BYTES))
        assert await a.add(b"count", 1) == 1
        assert a.link._connection is connection
        connection.send_json(padded({"type": "odd"}, STORE_BYTES + 1))
        assert await a.add(b"count", 1) == 2, "it connects again"
        assert a.link._connection is not connection

    run(body, tmp_path)


def test_the_hello_of_a_member_of_the_largest_job_is_read() -> None:
    address = "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff"
    members = tuple(Member("w" * 63 + f"-{n}", "i" * 32, address, 8) for n in range(10_000))
    held: Any = encode(Membership(MembershipId(9, 9, 9), members, Cause.STARTED, "d" * 4000))
    assert len(json.dumps({**hello_of("a"), "membership": held}, separators=(",", ":"))) < (
        HELLO_BYTES - MESSAGE_BYTES
    )
