"""The service's HTTP API: each request gets an answer, and only proven ones act."""

from __future__ import annotations

import contextlib
import json
import re
from typing import Any
from urllib.parse import parse_qsl

from hypothesis import example, given
from hypothesis import strategies as st

from ddpjob_agent.net.listening import STREAM_BYTES
from ddpjob_agent.service.http_api import MAX_BODY_BYTES, MAX_POLL_SECONDS, OperatorApi
from ddpjob_protocol.checks import MAX_COUNT
from ddpjob_protocol.codec import decode, encode
from ddpjob_protocol.control import Expectation, Policy, Report, ServiceState
from ddpjob_protocol.credentials import JobKey
from ddpjob_protocol.signed_http import PROOF_HEADER, RequestSigner, RequestVerifier
from support.fuzzing import connection, fuzz, measured, mutated, mutated_json, odd_values, run
from support.keys import ANOTHER_KEY, KEY

CHALLENGE = "the-challenge"
REPORT = Report(1, 1, 1, ServiceState.WAITING, "0 of at least 1 workers are here", ())
STATUS = re.compile(rb"HTTP/1\.1 (200|400|403|404|413|431) [A-Za-z ]+\r\n")
EXPECTATION = encode(
    Expectation(("a-0", "a-1"), ("a-2",), Policy(minimums=(("a-", 1),), max_losses=5), failures=1)
)


class Service:
    """An API that records what it is asked."""

    def __init__(self) -> None:
        self.polls: list[tuple[int, float, bool]] = []
        self.expected: list[Expectation] = []
        self.authenticated = 0

    async def report_after(self, version: int, seconds: float, only_news: bool) -> Report:
        self.polls.append((version, seconds, only_news))
        return REPORT

    def prove(self) -> None:
        self.authenticated += 1


def answer(data: bytes) -> tuple[bytes, Service]:
    """Return the answer to these bytes, and what the API was asked."""

    async def body() -> tuple[bytes, Service]:
        service = Service()
        api = OperatorApi(KEY.operator, service.report_after, service.expected.append)
        api._verifier = RequestVerifier(KEY.operator, lambda: CHALLENGE)
        with connection(data[5:], STREAM_BYTES) as (reader, writer, sink):
            await api.serve(data[:5], reader, writer, service.prove)
            return bytes(sink.data), service

    return measured(lambda: run(body()), len(data))


def request(line: str, body: bytes = b"", key: JobKey = KEY) -> bytes:
    method, _, target = line.partition(" ")
    path, _, query = target.partition("?")
    content: object = None
    with contextlib.suppress(RecursionError, ValueError):
        content = json.loads(body)
    signer = RequestSigner(key.operator)
    signer._challenge = CHALLENGE
    fields = dict(parse_qsl(query, keep_blank_values=True))
    proof = signer.sign(method, path, fields, content, "nonce")[PROOF_HEADER]
    head = (
        f"{line} HTTP/1.1\r\nHost: s\r\n{PROOF_HEADER}: {proof}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def check(data: bytes) -> None:
    said, service = answer(data)
    head, _, body = said.partition(b"\r\n\r\n")
    match = STATUS.match(head)
    assert match, said
    assert len(body) == int(re.findall(rb"Content-Length: (\d+)", head)[0]) < 5000
    assert isinstance(json.loads(body), dict)
    acts = [*service.polls, *service.expected]
    assert len(acts) <= service.authenticated <= 1
    assert service.authenticated == 0 or PROOF_HEADER.encode().lower() in data.lower()
    assert bool(acts) <= (match[1] == b"200")
    for version, seconds, _ in service.polls:
        assert abs(version) <= MAX_COUNT
        assert 0 <= seconds <= MAX_POLL_SECONDS
    for each in service.expected:
        check_expectation(each)


def check_expectation(expectation: Expectation) -> None:
    """Check that the service can reckon with each value, and can send it."""
    text = json.dumps(encode(expectation), allow_nan=False)
    assert decode(Expectation, json.loads(text)) == expectation
    policy = expectation.policy
    numbers = [value for value in vars(policy).values() if isinstance(value, (int, float))]
    assert all(0 <= number <= MAX_COUNT for number in [*numbers, expectation.failures])
    names = [*expectation.workers, *expectation.draining, *(each for each, _ in policy.minimums)]
    assert all(len(name.encode()) <= 1000 for name in names)


queries = st.builds(
    lambda fields: "&".join(f"{name}={value}" for name, value in fields),
    st.lists(
        st.tuples(
            st.sampled_from(["after", "timeout", "news", "x"]),
            st.sampled_from(["0", "1", "-1", "nan", "inf", "-inf", "1e400", "9" * 400, "%ff", "1_0", ""])
            | odd_values.map(str).filter(lambda text: len(text) < 100 and text.isascii()),
        ),
        max_size=4,
    ),
)  # fmt: skip
gets = st.builds(lambda query: request(f"GET /report?{query}"), queries)
paths = st.sampled_from(
    ["GET /healthz", "GET /", "PUT /report", "GET //[", "PUT /expected", "GET /x"]
)
puts = st.builds(
    lambda value: request("PUT /expected", json.dumps(value).encode()),
    mutated_json(st.just(EXPECTATION)),
)


@fuzz(200)
@given(mutated(gets | puts | st.builds(request, paths, key=st.sampled_from([KEY, ANOTHER_KEY]))))
@example(request("GET //["))
@example(request("GET /report?timeout=nan"))
@example(request("PUT /expected", b"[" * 100_000))
@example(request("PUT /expected").replace(b"Length: 0", b"Length: %d" % (MAX_BODY_BYTES + 1)))
@example(request("PUT /expected").replace(b"Length: 0", b"Length: 99999999"))
@example(request("PUT /expected").replace(b"Length: 0", b"Length: -1"))
@example(b"GET /" + b"x" * (STREAM_BYTES + 100))
def test_bytes_get_one_answer(data: bytes) -> None:
    check(data)


@fuzz(150)
@given(mutated_json(st.just(EXPECTATION)))
def test_an_expectation_is_within_its_limits_or_refused(data: Any) -> None:
    check(request("PUT /expected", json.dumps(data).encode()))


@fuzz(100)
@given(st.integers(0, MAX_COUNT), st.floats(0, MAX_POLL_SECONDS), st.booleans())
def test_requests_arrive_as_they_were_sent(after: int, seconds: float, news: bool) -> None:
    said, service = answer(request(f"GET /report?after={after}&timeout={seconds}&news={int(news)}"))
    assert said.startswith(b"HTTP/1.1 200 ")
    assert service.polls == [(after, seconds, news)]
    _, service = answer(request("PUT /expected", json.dumps(EXPECTATION).encode()))
    assert [encode(each) for each in service.expected] == [EXPECTATION]
