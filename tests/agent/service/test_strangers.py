"""Peers without a key: the service bounds their number, their time and their bytes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from typing import TYPE_CHECKING

from ddpjob_agent.net.framing import MAGIC, connect
from ddpjob_agent.net.sockets.listening import STREAM_BYTES, Listener, bind
from ddpjob_agent.net.sockets.strangers import MOST_STRANGERS, Strangers
from ddpjob_agent.registry.state.registry_state import initial_state
from ddpjob_agent.service.http_api import MAX_BODY_BYTES
from ddpjob_agent.service.server import RendezvousServer
from ddpjob_operator.rendezvous.client import ServiceClient, connect_directly
from ddpjob_protocol.keys.signed_http import PROOF_HEADER, RequestSigner
from ddpjob_protocol.messages.control import Expectation
from support.keys import ANOTHER_KEY, KEY, credential

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from ddpjob_protocol.keys.credentials import JobKey

HOST = "127.0.0.1"
PATIENCE_SECONDS = 240.0


@contextlib.asynccontextmanager
async def a_service() -> AsyncIterator[int]:
    """Run a service in this process; yield its port."""
    server = RendezvousServer(initial_state(1, 1, time.time() - time.monotonic()), KEY)
    listener = Listener(bind(HOST, 0), server._connected, Strangers(seconds=2 * PATIENCE_SECONDS))
    try:
        yield listener.port
    finally:
        listener.close()


def run(body: Callable[[int], Awaitable[None]]) -> None:
    async def main() -> None:
        async with a_service() as port:
            await asyncio.wait_for(body(port), PATIENCE_SECONDS)

    asyncio.run(main())


def request(method: str, path: str, length: int, key: JobKey | None = None) -> bytes:
    """Return the head of a request, with the proof of a key."""
    signer = RequestSigner(b"" if key is None else key.operator)
    proof = signer.sign(method, path, {}, None, "nonce")[PROOF_HEADER] if key else ""
    head = f"{method} {path} HTTP/1.1\r\n{PROOF_HEADER}: {proof}\r\nContent-Length: {length}"
    return f"{head}\r\n\r\n".encode()


async def ask(port: int, head: bytes) -> bytes:
    """Return the status line that the service answers to a head, without a body."""
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(head)
    with contextlib.closing(writer):
        return await reader.readline()


def test_idle_connections_without_a_key_shut_no_client_out() -> None:
    async def body(port: int) -> None:
        idle = [await asyncio.open_connection(HOST, port) for _ in range(300)]
        agent = await connect(HOST, port, credential("a"))
        client = ServiceClient(connect_directly(HOST, port), KEY.operator)
        await client.expect(Expectation(("a",)))
        assert (await client.report()).version > 0
        for reader, _ in idle[: 300 - MOST_STRANGERS]:
            assert await reader.read() == b"", "the oldest have ended"
        assert not any(reader.at_eof() for reader, _ in idle[-10:]), "the newest have not"
        agent.close()
        for _, writer in idle:
            writer.close()

    run(body)


def test_an_agent_with_its_key_is_no_stranger() -> None:
    async def body(port: int) -> None:
        agent = await connect(HOST, port, credential("a"))
        flood = [await asyncio.open_connection(HOST, port) for _ in range(2 * MOST_STRANGERS)]
        assert await flood[0][0].read() == b""
        agent.send({"type": "hello", "protocol": -1})
        answer = await agent.receive()
        assert answer is not None
        assert answer["type"] == "refused"
        agent.close()
        for _, writer in flood:
            writer.close()

    run(body)


def test_a_body_without_a_proof_is_not_read() -> None:
    async def body(port: int) -> None:
        head = request("PUT", "/expected", MAX_BODY_BYTES)
        assert b" 403 " in await ask(port, head), "before a byte of the body"
        assert b" 403 " in await ask(port, request("PUT", "/expected", 0, ANOTHER_KEY))
        assert b" 413 " in await ask(port, request("GET", "/healthz", 1))
        assert b" 200 " in await ask(port, request("GET", "/healthz", 0))
        assert b" 431 " in await ask(port, b"GET /" + b"x" * (STREAM_BYTES + 4)), "an endless head"

    run(body)


def test_a_refused_client_that_sends_its_body_gets_the_answer() -> None:
    async def body(port: int) -> None:
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(request("PUT", "/expected", 1000))
        assert b" 403 " in await reader.readline()
        writer.write(b"x" * 1000)
        assert json.loads((await reader.read()).split(b"\r\n\r\n")[1])["error"]
        writer.close()

    run(body)


def test_a_body_above_the_limit_is_refused_with_a_proof_too() -> None:
    async def body(port: int) -> None:
        assert b" 413 " in await ask(port, request("PUT", "/expected", MAX_BODY_BYTES + 1, KEY))
        for length in ("-1", "many"):
            head = request("PUT", "/expected", 0, KEY).replace(b": 0", f": {length}".encode())
            assert b" 400 " in await ask(port, head)
        assert b" 400 " in await ask(port, request("GET", "//[", 0)), "not a target"

    run(body)


def test_a_stranger_has_a_time_limit_for_everything_before_the_proof() -> None:
    async def main() -> None:
        served: list[bytes] = []

        async def serve(
            reader: asyncio.StreamReader,
            writer: asyncio.StreamWriter,
            authenticated: Callable[[], None],
        ) -> None:
            first = await reader.read(len(MAGIC))
            if first:
                authenticated()
            served.append(first + await reader.read())
            writer.close()

        strangers = Strangers(seconds=0.0)
        listener = Listener(bind(HOST, 0), serve, strangers)
        reader, writer = await asyncio.open_connection(HOST, listener.port)
        assert await reader.read() == b""
        writer.close()
        assert served == [b""]
        assert len(strangers) == 0
        listener.close()

    asyncio.run(main())
