"""Targets: a whole service, and a peer that sends it anything, with and without a key.

The service runs in fake time. Beside the peer, an honest worker and the operator are served: whatever
the peer sends, the service decides, answers both, and logs no error and no line of the peer's own.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from agent.fuzz.test_messages import HELLO, MESSAGES, WORKERS, check, job
from agent.fuzz.test_store_messages import OTHERS, REQUESTS, store
from agent.membership.views import NOW
from ddpjob_agent.c10d.protocol import Op, Request, encode_request
from ddpjob_agent.net import framing
from ddpjob_agent.net.framing import AGENT, MAGIC, NONCE_BYTES, Connection, FrameKeys
from ddpjob_agent.net.sockets.listening import STREAM_BYTES
from ddpjob_agent.registry.decisions import decide
from ddpjob_agent.registry.messages import on_message
from ddpjob_agent.registry.registration import SupersededError, on_disconnect, on_hello
from ddpjob_agent.registry.report import build_report
from ddpjob_agent.registry.state.registry_state import initial_state
from ddpjob_agent.service.server import RendezvousServer
from ddpjob_protocol.codec import DecodeError, encode
from ddpjob_protocol.messages.agent import PROTOCOL
from ddpjob_protocol.messages.control import Expectation, Policy
from ddpjob_protocol.parsers.service_report import parse_report
from fuzz.target import Form, Target, of_json, to_json
from support import fake_time
from support.keys import KEY

FOE, HONEST = WORKERS
WALL = 1_700_000_000.0  # at the start
MAX_LINE = 2000
MAX_SECONDS = 100.0
MAX_PAUSE = 10_000.0
MEMBER = {"worker": FOE, "incarnation": "a-1", "address": "10.0.0.1", "processes": 1}
BEAT = {"type": "beat", "processes": [], "settled": 0}
FIRST_HELLO = {
    **HELLO,
    "protocol": PROTOCOL,
    "member": MEMBER,
    "membership": None,
    "running": False,
}


class Pipe(asyncio.Transport):
    """One direction of a connection in memory: what is written is read at the other end."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        super().__init__()
        self._reader = reader
        self._is_closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._is_closed:
            self._reader.feed_data(bytes(data))

    def is_closing(self) -> bool:
        return self._is_closed

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._reader.feed_eof()


class Lines(logging.Handler):
    """A log whose lines are short, printable, and no errors."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.failed = ""

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        is_odd = len(line) > MAX_LINE or not line.isprintable()
        if record.levelno >= logging.ERROR or is_odd:
            self.failed = self.failed or f"{record.levelname}: {line[:MAX_LINE]!r}"
            if record.exc_info:
                self.failed += repr(record.exc_info[1])


@contextlib.contextmanager
def log_lines() -> Iterator[Lines]:
    lines, root = Lines(), logging.getLogger()
    before = root.handlers[:]
    root.handlers[:] = [lines]
    try:
        yield lines
    finally:
        root.handlers[:] = before


class Peer:
    """A peer of a service in this process."""

    def __init__(self, server: RendezvousServer) -> None:
        self._loop = asyncio.get_running_loop()
        theirs, self.reader = asyncio.StreamReader(STREAM_BYTES), asyncio.StreamReader(1 << 26)
        self.writer = self._writer(self.reader, Pipe(theirs))
        self.task = asyncio.ensure_future(
            server._connected(theirs, self._writer(theirs, Pipe(self.reader)), lambda: None)
        )

    def _writer(self, reader: asyncio.StreamReader, pipe: Pipe) -> asyncio.StreamWriter:
        return asyncio.StreamWriter(pipe, asyncio.StreamReaderProtocol(reader), reader, self._loop)

    async def authenticate(self, name: str) -> Connection:
        first = bytes(NONCE_BYTES) + bytes([len(name)]) + name.encode()
        self.writer.write(MAGIC + first)
        answer = await self.reader.readexactly(len(MAGIC) + NONCE_BYTES + framing.PROOF_BYTES)
        key, transcript = KEY.worker(name), first + answer[len(MAGIC) :][:NONCE_BYTES]
        self.writer.write(framing._code(key, AGENT, transcript))
        return Connection(self.reader, self.writer, FrameKeys.of(key, transcript, AGENT))

    async def end(self) -> None:
        self.writer.close()
        await self.task


class Honest:
    """A worker that registers, beats, and uses the store."""

    def __init__(self, server: RendezvousServer) -> None:
        self._peer = Peer(server)
        self.heard: list[Any] = []

    async def start(self) -> None:
        self._link = await self._peer.authenticate(HONEST)
        member = {**MEMBER, "worker": HONEST, "incarnation": "b-1"}
        self._link.send({**FIRST_HELLO, "member": member, "files": None})
        self._hearing = asyncio.ensure_future(self._hear())
        self._beating = asyncio.ensure_future(self._beat())

    async def _hear(self) -> None:
        while (message := await self._link.receive()) is not None:
            self.heard.append(message)
            if message["type"] == "ask":
                self._link.send(BEAT)

    async def _beat(self) -> None:
        while True:
            self._link.send(BEAT)
            await asyncio.sleep(1)

    async def check(self) -> None:
        """Send a request to the store; the service answers it, and beats."""
        del self.heard[:]
        request = encode_request(Request(Op.ADD, (b"of b",), number=1))
        data = store(request, 1, more=False)["data"]
        self._link.send({"type": "store", "id": 1, "membership": "1.1.1", "data": data})
        await asyncio.sleep(1.5)
        kinds = {each["type"] for each in self.heard}
        assert {"beat", "stored"} <= kinds, self.heard

    async def end(self) -> None:
        self._beating.cancel()
        await self._peer.end()
        await self._hearing


async def serve(attack: Callable[[RendezvousServer], Any]) -> None:
    """Run a service while a peer attacks it."""
    state = initial_state(1, 1, WALL)
    server = RendezvousServer(state, KEY)
    server._on_expectation(Expectation(WORKERS, policy=Policy(files=True)))
    server._turns.start()
    honest = Honest(server)
    await honest.start()
    await attack(server)
    await honest.check()
    parse_report(json.loads(json.dumps(encode(build_report(state, 1)), allow_nan=False)))
    await honest.end()
    server._turns.close()


def in_fake_time(attack: Callable[[RendezvousServer], Any]) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: faults.append(repr(context)))
        with mock.patch("time.monotonic", loop.time):
            await serve(attack)

    faults: list[str] = []
    with log_lines() as lines:
        fake_time.run(main())
    assert not lines.failed, lines.failed
    assert not faults, faults


def attack_with_key(value: Any) -> None:
    """Send each message; null connects once more, and a number is a pause."""

    async def attack(server: RendezvousServer) -> None:
        peers = [Peer(server)]
        link = await peers[-1].authenticate(FOE)
        for each in value:
            if each is None and len(peers) < 5:
                peers.append(Peer(server))
                link = await peers[-1].authenticate(FOE)
            elif isinstance(each, int | float) and 0 <= each < MAX_SECONDS:
                await asyncio.sleep(each)
            else:
                link.send_json(json.dumps(each).encode())
        await asyncio.sleep(0.2)
        for peer in peers:
            await peer.end()

    if isinstance(value, list):
        in_fake_time(attack)


def attack_without_key(data: bytes) -> None:
    async def attack(server: RendezvousServer) -> None:
        peer = Peer(server)
        peer.writer.write(data)
        await asyncio.sleep(0.2)
        await peer.end()

    in_fake_time(attack)


STORE = [store(encode_request(each), at, more=False) for at, each in enumerate(REQUESTS, 1)]
SESSIONS = (
    [FIRST_HELLO],
    [FIRST_HELLO, 1, *MESSAGES],
    [FIRST_HELLO, 1, *STORE, {"type": "cancel", "id": 4}, {"type": "beat", "settled": 5}],
    [FIRST_HELLO, 1, STORE[0], None, {**HELLO, "protocol": PROTOCOL}, 1, *OTHERS, STORE[1]],
    [FIRST_HELLO, 1, {"type": "live"}, 1, {"type": "ready"}, 2, {"type": "promise", "step": 5}],
    [{**FIRST_HELLO, "protocol": 1}],
    [{**FIRST_HELLO, "protocol": "x\n" * 2000}],
    *([FIRST_HELLO, 1, message, 3] for message in (*MESSAGES, *OTHERS)),
)
HEADS = (
    b"GET /healthz HTTP/1.1\r\n\r\n",
    b"GET /report?after=0&timeout=5 HTTP/1.1\r\nX-DDPJob-Proof: n d - p\r\n\r\n",
    MAGIC + bytes(16) + b"\1a" + bytes(32),
)


def apply_messages(value: Any) -> None:
    """Apply each [worker, message]; a number is a pause, and null a disconnection."""
    state, now = job(), NOW
    for each in value if isinstance(value, list) else ():
        match each:
            case int() | float() if 0 <= each < MAX_PAUSE:
                now += each
                decide(state, now)
            case [0 | 1 as at, None]:
                on_disconnect(state, WORKERS[at], now)
            case [0 | 1 as at, {"type": "hello", "member": _} as message]:
                try:
                    on_hello(state, message, now)
                except (DecodeError, SupersededError) as error:
                    assert len(str(error)) < 2000
            case [0 | 1 as at, {"type": str(), **_rest} as message]:
                on_message(state, WORKERS[at], message, now)
    check(state)


TARGETS = (
    Target(
        "registry",
        Form.JSON,
        of_json(apply_messages),
        (
            *to_json(*([[0, message], 1, [1, message]] for message in MESSAGES)),
            *to_json([[0, None], 2, [0, HELLO], 40, [0, MESSAGES[0]]]),
            *to_json([[0, {"type": "live"}], [0, {"type": "ready"}], [1, {"type": "ready"}], 5]),
        ),
    ),
    Target("service", Form.JSON, of_json(attack_with_key), to_json(*SESSIONS), max_bytes=8192),
    Target("strangers", Form.BYTES, attack_without_key, HEADS),
)
