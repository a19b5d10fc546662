"""The service's HTTP API: each request gets an answer, and only good ones with a proof act."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlencode

from hypothesis import example, given
from hypothesis import strategies as st

from ddpjob_agent.net.sockets.listening import STREAM_BYTES
from ddpjob_agent.service.http_api import MAX_POLL_SECONDS, OperatorApi
from ddpjob_protocol.codec import decode, encode
from ddpjob_protocol.keys.signed_http import RequestSigner
from ddpjob_protocol.messages.control import Expectation, Policy, Report, ServiceState
from ddpjob_protocol.parsers.checks import MAX_COUNT
from support.fuzzing import DEEP, Draw, connection, fuzz, measured, mutated, mutated_json, run
from support.keys import KEY

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


Make = Callable[[RequestSigner], bytes]


async def send(api: OperatorApi, service: Service, data: bytes) -> bytes:
    with connection(data[5:], STREAM_BYTES) as (reader, writer, sink):
        await api.serve(data[:5], reader, writer, service.prove)
        return bytes(sink.data)


def answer(make: Make) -> tuple[bytes, Service]:
    """Return the answer to a request of a signer that has the challenge, and what the API did."""

    async def body() -> tuple[bytes, Service, int]:
        service = Service()
        api = OperatorApi(KEY.operator, service.report_after, service.expected.append)
        signer = RequestSigner(KEY.operator)
        first = await send(api, service, request(signer, "GET", "/report", {}, None, "first"))
        assert signer.open(json.loads(first.partition(b"\r\n\r\n")[2]), "first") is None
        service.authenticated = 0
        data = make(signer)
        return await send(api, service, data), service, len(data)

    size = run(body())[2]
    said, service, _ = measured(lambda: run(body()), size)
    return said, service


def request(
    signer: RequestSigner,
    method: str,
    path: str,
    query: Mapping[str, str],
    body: Any,
    nonce: str = "n",
) -> bytes:
    """Return a request with its proof."""
    headers = signer.sign(method, path, query, body, nonce)
    content = b"" if body is None else json.dumps(body).encode()
    lines = [
        f"{method} {path}?{urlencode(query)} HTTP/1.1",
        *(f"{name}: {value}" for name, value in headers.items()),
        f"Content-Length: {len(content)}\r\n\r\n",
    ]
    return "\r\n".join(lines).encode() + content


def check(make: Make) -> Service:
    said, service = answer(make)
    head, _, body = said.partition(b"\r\n\r\n")
    match = STATUS.match(head)
    assert match, said
    assert len(body) == int(re.findall(rb"Content-Length: (\d+)", head)[0]) < 5000
    assert isinstance(json.loads(body), dict)
    acts = [*service.polls, *service.expected]
    assert len(acts) <= service.authenticated <= 1
    assert bool(acts) <= (match[1] == b"200")
    for version, seconds, _ in service.polls:
        assert 0 <= version <= MAX_COUNT
        assert 0 <= seconds <= MAX_POLL_SECONDS
    for each in service.expected:
        check_expectation(each)
    return service


def check_expectation(expectation: Expectation) -> None:
    """Check that the service can reckon with each value, and can send it."""
    text = json.dumps(encode(expectation), allow_nan=False)
    assert decode(Expectation, json.loads(text)) == expectation
    policy = expectation.policy
    numbers = [value for value in vars(policy).values() if isinstance(value, (int, float))]
    assert all(0 <= number <= MAX_COUNT for number in [*numbers, expectation.failures])
    names = [*expectation.workers, *expectation.draining, *(each for each, _ in policy.minimums)]
    assert all(len(name.encode()) <= 1000 for name in names)


QUERY = {"after": "7", "timeout": "5", "news": "1"}
queries = st.dictionaries(
    st.sampled_from([*QUERY, "x", ""]),
    st.sampled_from(["0", "1", "-1", "nan", "inf", "-inf", "1e400", "9" * 400, "1_0", ""])
    | st.text(max_size=9),
)  # fmt: skip
PUT: tuple[str, str, dict[str, str], Any] = ("PUT", "/expected", {}, EXPECTATION)
GET = ("GET", "/report", QUERY, None)


@st.composite
def changes(draw: Draw) -> Callable[[bytes], bytes]:
    """Return a change of a request: the bytes of a changed one instead of those of this length."""
    at, end = sorted((draw(st.floats(0, 1)), draw(st.floats(0, 1))))
    word: bytes = draw(
        st.binary(max_size=9)
        | st.sampled_from([b"", b"\r\n", b"\r\n\r\n", b"nan", b" ", b"[" * 999])
    )

    def change(data: bytes) -> bytes:
        return data[: int(at * len(data))] + word + data[int(end * len(data)) :]

    return change


@fuzz(150)
@given(st.sampled_from([PUT, GET]), changes())
def test_a_request_that_was_changed_gets_one_answer(
    sent: Any, change: Callable[[bytes], bytes]
) -> None:
    """A changed request acts as it was proven, or not at all."""
    service = check(lambda signer: change(request(signer, *sent)))
    assert service.polls in ([], [(7, 5.0, True)])
    assert [encode(each) for each in service.expected] in ([], [EXPECTATION])


@fuzz(150)
@given(
    mutated(
        st.sampled_from(
            [
                b"GET /healthz HTTP/1.1\r\n\r\n",
                b"PUT /expected HTTP/1.1\r\nContent-Length: 9\r\n\r\n",
            ]
        )
    )
)
@example(b"GET //[ HTTP/1.1\r\n\r\n")
@example(b"GET /healthz HTTP/1.1\r\nContent-Length: -1\r\n\r\n")
@example(b"GET /healthz HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n")
@example(b"GET /" + b"x" * (STREAM_BYTES + 100))
def test_bytes_without_a_proof_get_one_answer(data: bytes) -> None:
    assert check(lambda _: data).authenticated == 0


@fuzz(150)
@given(queries)
@example({"timeout": "nan"})
@example({"after": "-1"})
def test_a_poll_is_within_its_limits_or_refused(query: dict[str, str]) -> None:
    check(lambda signer: request(signer, "GET", "/report", query, None))


@fuzz(150)
@given(mutated_json(st.just(EXPECTATION)))
@example(DEEP)
def test_an_expectation_is_within_its_limits_or_refused(data: Any) -> None:
    check(lambda signer: request(signer, "PUT", "/expected", {}, data))


@fuzz(50)
@given(st.integers(0, MAX_COUNT), st.floats(0, MAX_POLL_SECONDS), st.booleans())
def test_requests_arrive_as_they_were_sent(after: int, seconds: float, news: bool) -> None:
    query = {"after": str(after), "timeout": str(seconds), "news": str(int(news))}
    service = check(lambda signer: request(signer, "GET", "/report", query, None))
    assert service.polls == [(after, seconds, news)]
    service = check(lambda signer: request(signer, *PUT))
    assert [encode(each) for each in service.expected] == [EXPECTATION]
