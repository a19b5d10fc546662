"""Targets: requests of c10d clients, of the operator and of the fork server's callers."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

from agent.fuzz.test_c10d_requests import VALIDATE, stream_of, text, to_bytes
from agent.fuzz.test_fork_requests import VALID, check, framed, received
from agent.fuzz.test_http import EXPECTATION, QUERY, STATUS, Service, check_expectation, request
from ddpjob_agent.c10d.protocol import Op, Request
from ddpjob_agent.c10d.server import StoreBackend, serve_client
from ddpjob_agent.c10d.store import Store
from ddpjob_agent.forkserver.channel import FDS
from ddpjob_agent.net.sockets.listening import STREAM_BYTES
from ddpjob_agent.service.http_api import MAX_POLL_SECONDS, OperatorApi
from ddpjob_protocol.keys.signed_http import RequestSigner
from fuzz.target import Form, Target, of_json, to_json
from support import fake_time
from support.fuzzing import connection
from support.keys import KEY

SPLIT = b"\xff\xfe\xfd"  # between the bytes of two clients
REQUESTS = (
    Request(Op.SET, (b"k",), (b"1",)),
    Request(Op.COMPARE_SET, (b"k",), (b"1", b"v")),
    Request(Op.GET, (b"k",)),
    Request(Op.ADD, (b"k",), number=-2),
    Request(Op.CHECK, (b"k", b"x")),
    Request(Op.WAIT, (b"k", b"q")),
    Request(Op.GETNUMKEYS),
    Request(Op.DELETE_KEY, (b"k",)),
    Request(Op.APPEND, (b"k",), (b"v",)),
    Request(Op.MULTI_GET, (b"k", b"x")),
    Request(Op.MULTI_SET, (b"k", b"x"), (b"v", b"")),
    Request(Op.CANCEL_WAIT),
    Request(Op.PING, number=5),
    Request(Op.QUEUE_PUSH, (b"q",), (b"v",)),
    Request(Op.QUEUE_POP, (b"q",)),
    Request(Op.QUEUE_LEN, (b"q",)),
    Request(Op.LIST_KEYS),
    Request(Op.BARRIER, (b"b",), number=2),
)


def serve_clients(data: bytes) -> None:
    """Serve two clients of one store at once, and then a third one, which is answered."""
    fake_time.run(_serve_clients(data.split(SPLIT)[:3]))


async def _serve_clients(streams: list[bytes]) -> None:
    backend = StoreBackend(Store())
    with contextlib.ExitStack() as stack:
        clients = [
            stack.enter_context(connection(to_bytes(VALIDATE) + each, STREAM_BYTES))
            for each in streams
        ]
        tasks = [
            asyncio.ensure_future(serve_client(reader, writer, backend))
            for reader, writer, _ in clients
        ]
        await asyncio.gather(*tasks)
        assert all(sink.closed for _, _, sink in clients)
    assert not backend._waiters, "the requests of clients that are gone wait for ever"
    asked = stream_of([VALIDATE, Request(Op.SET, (b"own",), (b"v",)), Request(Op.GET, (b"own",))])
    with connection(asked, STREAM_BYTES) as (reader, writer, sink):
        await serve_client(reader, writer, backend)
        assert sink.data == text(b"v")


def answer_head(data: bytes) -> None:
    """Answer a request without a proof."""
    said, service = fake_time.run(_send(data))
    check_answer(said, service)
    assert not service.authenticated


def answer_request(value: Any) -> None:
    """Answer the requests of an operator that has the key."""
    match value:
        case [str(method), str(path), dict(query), body] if all(
            isinstance(each, str) for each in query.values()
        ):
            pass
        case _:
            return
    signer = RequestSigner(KEY.operator)
    try:
        data = request(signer, method, path, query, body)
    except ValueError:  # a surrogate cannot be sent
        return
    said, service = fake_time.run(_send(data, signer, (method, path, query, body)))
    check_answer(said, service)


async def _send(
    data: bytes, signer: RequestSigner | None = None, again: tuple[Any, ...] = ()
) -> tuple[bytes, Service]:
    service = Service()
    api = OperatorApi(KEY.operator, service.report_after, service.expected.append)
    said = b""
    for _ in range(2 if signer else 1):
        with connection(data[5:], STREAM_BYTES) as (reader, writer, sink):
            await api.serve(data[:5], reader, writer, service.prove)
            said = bytes(sink.data)
        if signer:
            with contextlib.suppress(Exception):
                signer.open(json.loads(said.partition(b"\r\n\r\n")[2]), "n")
            method, path, query, body = again
            data = request(signer, method, path, query, body, "m")
    return said, service


def check_answer(said: bytes, service: Service) -> None:
    head, _, body = said.partition(b"\r\n\r\n")
    assert STATUS.match(head), said
    assert len(body) < 5000
    assert isinstance(json.loads(body), dict)
    for _, seconds, _ in service.polls:
        assert 0 <= seconds <= MAX_POLL_SECONDS
    for each in service.expected:
        check_expectation(each)


def receive_fork_request(data: bytes) -> None:
    check(received(data, FDS))


TARGETS = (
    Target(
        "c10d",
        Form.BYTES,
        serve_clients,
        (
            stream_of([*REQUESTS]),
            SPLIT.join(
                [
                    stream_of([Request(Op.WAIT, (b"k",)), Request(Op.PING, number=1)]),
                    stream_of([Request(Op.BARRIER, (b"b",), number=2)]),
                    stream_of([Request(Op.SET, (b"k",), (b"v",)), REQUESTS[-1]]),
                ]
            ),
            *(to_bytes(each) for each in REQUESTS),
        ),
    ),
    Target(
        "http",
        Form.BYTES,
        answer_head,
        (
            b"GET /healthz HTTP/1.1\r\n\r\n",
            b"PUT /expected HTTP/1.1\r\nContent-Length: 9\r\nX-DDPJob-Proof: n d - p\r\n\r\n{}",
            request(RequestSigner(b"another key"), "GET", "/report", QUERY, None),
        ),
    ),
    Target(
        "requests",
        Form.JSON,
        of_json(answer_request),
        to_json(["PUT", "/expected", {}, EXPECTATION], ["GET", "/report", QUERY, None]),
    ),
    Target("forks", Form.BYTES, receive_fork_request, tuple(map(framed, to_json(VALID)))),
)
