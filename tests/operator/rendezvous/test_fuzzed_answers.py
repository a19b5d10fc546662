"""What a rendezvous service answers to the operator: a report within its limits, or a refusal."""

from __future__ import annotations

import asyncio
import functools
import json
import re
from collections.abc import Callable
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from ddpjob_operator.rendezvous.client import (
    ServiceClient,
    ServiceUnavailableError,
    connect_directly,
)
from ddpjob_protocol.codec import DecodeError, encode
from ddpjob_protocol.keys.signed_http import PROOF_HEADER, Proof, RequestVerifier
from ddpjob_protocol.messages.control import Report
from ddpjob_protocol.parsers.service_report import parse_report
from support.answers import FULL, SINCE, check
from support.fuzzing import DEEP, fuzz, measured, mutated, mutated_json, size_of
from support.keys import KEY

answers = mutated_json(st.just(encode(FULL)), 3)


@fuzz(100)
@given(answers)
@example({**encode(FULL), "reason": "x" * 300_000})
@example({**encode(FULL), "failure": {"at": SINCE, "summary": "x" * 300_000}})
@example({**encode(FULL), "workers": ["x" * 253] * 9000})
@example({**encode(FULL), "memberships": encode(FULL.memberships) * 900})
def test_an_answer_is_a_report_within_its_limits_or_refused(data: Any) -> None:
    try:
        report = measured(lambda: parse_report(data), size_of(data))
    except DecodeError as error:
        assert len(str(error)) < 1000
        assert str(error).isprintable()
        return
    check(report)


HEADS = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n",
    b"HTTP/1.1 500 Oh\r\nContent-Length: %d\r\n\r\n",
    b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: %d\r\n\r\n",
    b"HTTP/1.0 200 OK\r\nX: %d\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n",
)


def response(head: bytes, value: Any) -> bytes:
    body = json.dumps(value).encode()
    return head % len(body) + body


def chunked(value: Any) -> bytes:
    body = json.dumps(value).encode()
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)


VERIFIER = RequestVerifier(KEY.operator, lambda: "challenge")
Respond = Callable[[str], bytes]  # to a request with this nonce


def sealed(make: Callable[[Any], bytes], value: Any) -> Respond:
    return lambda nonce: make(VERIFIER.seal(value, Proof(nonce, "", is_fresh=True)))


makes = st.sampled_from([functools.partial(response, HEADS[0]), chunked])
plain = mutated(st.builds(response, st.sampled_from(HEADS), answers) | st.builds(chunked, answers))
responses: st.SearchStrategy[Respond] = st.builds(sealed, makes, answers) | plain.map(
    lambda data: lambda _nonce: data
)


async def ask(said: list[Respond]) -> list[Report]:
    """Return the reports in these answers of a server, each on a connection of its own."""
    left = iter(said)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        [proof] = re.findall(rf"{PROOF_HEADER}: (\S+)", head)
        writer.write(next(left)(proof))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    client = ServiceClient(connect_directly(*server.sockets[0].getsockname()[:2]), KEY.operator)
    found = []
    async with server:
        for _ in said:
            try:
                found.append(await client.report())
            except ServiceUnavailableError as error:
                assert len(str(error)) < 1000
                assert str(error).isprintable()
    return found


@fuzz(30)
@given(st.lists(responses, min_size=1, max_size=5))
@example([lambda _: response(HEADS[0], None)[:-4] + b"[" * 100_000])
@example([lambda _: response(HEADS[1], None)[:-4] + b"[" * 400 + b"]" * 400])
@example([lambda _: response(HEADS[0], {"answer": DEEP, "proof": DEEP})])
def test_a_response_is_a_report_or_the_service_is_unavailable(said: list[Respond]) -> None:
    for report in asyncio.run(ask(said)):
        check(report)


def test_a_report_arrives_as_it_was_sent() -> None:
    sent = [
        sealed(functools.partial(response, HEADS[0]), encode(FULL)),
        sealed(chunked, encode(FULL)),
    ]
    assert asyncio.run(ask(sent)) == [FULL, FULL]


def test_a_report_without_a_proof_is_none() -> None:
    assert asyncio.run(ask([lambda _: response(HEADS[0], encode(FULL))])) == []
