"""What is sent to a rendezvous service, and what becomes of answers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import zlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from ddpjob_operator.controller.transports import direct_transport
from ddpjob_operator.local.simulated.rendezvous_process import free_port
from ddpjob_operator.rendezvous.client import (
    MAX_ANSWER_BYTES,
    InvalidReportError,
    ServiceClient,
    ServiceUnavailableError,
    connect_directly,
)
from ddpjob_operator.rendezvous.session_pool import Key, ServiceId
from ddpjob_protocol.codec import decode, encode
from ddpjob_protocol.keys.credentials import JobKey
from ddpjob_protocol.keys.signed_http import PROOF_HEADER, ForgedError, RequestVerifier, digest_of
from ddpjob_protocol.messages.control import Expectation
from support.builders import make_report, make_worker
from support.keys import ANOTHER_KEY, KEY

REPORT = make_report(make_worker(0), make_worker(1), step=7, metrics={"loss": 0.5})
EXPECTATION = Expectation(workers=("a", "b"), draining=("c",))
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def with_service(handler: Handler, story: Callable[[ServiceClient], Awaitable[None]]) -> None:
    async def main() -> None:
        app = web.Application()
        app.add_routes([web.route("*", "/{path}", handler)])
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port := free_port()).start()
        try:
            await story(ServiceClient(connect_directly("127.0.0.1", port), KEY.operator))
        finally:
            await runner.cleanup()

    asyncio.run(main())


class Verifying:
    """A service that verifies requests, and answers what it is given."""

    def __init__(self, answer: Any, key: JobKey = KEY) -> None:
        self.asked: list[tuple[str, str, dict[str, str]]] = []
        self.heard: list[Any] = []
        self.refused = 0
        self._answer = answer
        self._verifier = RequestVerifier(key.operator, lambda: "challenge")

    async def serve(self, request: web.Request) -> web.Response:
        words = (request.method, request.path, request.query.items(), request.headers[PROOF_HEADER])
        try:
            proof = self._verifier.verify(*words)
        except ForgedError as error:
            self.refused += 1
            return web.json_response({"error": str(error)}, status=403)
        if not proof.is_fresh:
            return web.json_response(self._verifier.challenge(proof))
        self.asked.append((request.method, request.path, dict(request.query)))
        if request.can_read_body:
            self.heard.append(await request.json())
            assert digest_of(self.heard[-1]) == proof.digest
        return web.json_response(self._verifier.seal(self._answer, proof))


def test_a_report_travels_whole_with_proofs_of_both_sides() -> None:
    service = Verifying(encode(REPORT))

    async def story(client: ServiceClient) -> None:
        assert await client.report() == REPORT
        assert await client.report(after=3, wait=0.5, only_news=True) == REPORT

    with_service(service.serve, story)
    assert service.asked == [
        ("GET", "/report", {"after": "0", "timeout": "0", "news": "0"}),
        ("GET", "/report", {"after": "3", "timeout": "0.5", "news": "1"}),
    ]


def test_an_expectation_travels_whole() -> None:
    service = Verifying({})

    async def story(client: ServiceClient) -> None:
        await client.expect(EXPECTATION)

    with_service(service.serve, story)
    assert [decode(Expectation, each) for each in service.heard] == [EXPECTATION]
    assert service.asked == [("PUT", "/expected", {})]


def test_a_service_of_another_job_is_not_believed() -> None:
    service = Verifying(encode(REPORT), ANOTHER_KEY)

    async def story(client: ServiceClient) -> None:
        with pytest.raises(ServiceUnavailableError, match="403"):
            await client.report()

    with_service(service.serve, story)
    assert service.refused == 1


@pytest.mark.parametrize("change", ["answer", "proof", "recorded"])
def test_an_answer_that_the_service_has_not_given_is_not_believed(change: str) -> None:
    service = Verifying(encode(REPORT))
    recorded: list[bytes] = []

    async def handler(request: web.Request) -> web.Response:
        response = await service.serve(request)
        assert isinstance(response.body, bytes)
        if not service.asked:
            return response
        sealed = json.loads(response.body)
        recorded.append(response.body)
        if change == "answer":
            sealed["answer"]["state"] = "Complete"
        elif change == "proof":
            sealed["proof"] = "0" * 64
        elif len(recorded) > 1:
            sealed = json.loads(recorded[0])
        return web.json_response(sealed)

    async def story(client: ServiceClient) -> None:
        if change == "recorded":
            await client.report()
        with pytest.raises(ServiceUnavailableError, match="not of this job's service"):
            await client.report()

    with_service(handler, story)


@pytest.mark.parametrize(
    "answer",
    [
        {"status": 403, "text": '{"error": "no proof"}', "content_type": "application/json"},
        {"status": 200, "text": "<html>", "content_type": "text/html"},
        {"status": 200, "text": "{", "content_type": "application/json"},
        {"status": 200, "text": "[]", "content_type": "application/json"},
        {"status": 200, "text": '{"version": 1}', "content_type": "application/json"},
    ],
    ids=["refused", "a web page", "cut off", "a list", "without a proof"],
)
def test_what_is_no_report_means_that_the_service_is_not_there(answer: dict[str, Any]) -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(**answer)

    async def story(client: ServiceClient) -> None:
        with pytest.raises(ServiceUnavailableError) as error:
            await client.report()
        assert str(error.value)

    with_service(handler, story)


def test_a_report_of_another_version_means_so_too() -> None:
    async def story(client: ServiceClient) -> None:
        with pytest.raises(InvalidReportError):
            await client.report()

    with_service(Verifying({"version": 1}).serve, story)


def test_a_redirect_is_not_followed() -> None:
    paths: list[str] = []

    async def handler(request: web.Request) -> web.Response:
        paths.append(request.path)
        return web.Response(status=302, headers={"Location": "/elsewhere"}, text="{}")

    async def story(client: ServiceClient) -> None:
        with pytest.raises(ServiceUnavailableError, match="302"):
            await client.report()

    with_service(handler, story)
    assert paths == ["/report"]


def test_an_answer_without_an_end_is_not_read() -> None:
    sent = 0

    async def handler(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        answer = web.StreamResponse(headers={"Content-Type": "application/json"})
        await answer.prepare(request)
        with contextlib.suppress(ConnectionError):
            for _ in range(100):
                await answer.write(b"[" * (1 << 20))
                sent += 1 << 20
        return answer

    async def story(client: ServiceClient) -> None:
        with pytest.raises(ServiceUnavailableError, match=f"more than {MAX_ANSWER_BYTES} bytes"):
            await client.report()

    with_service(handler, story)
    assert sent < 20 * MAX_ANSWER_BYTES


def test_an_answer_is_not_unpacked() -> None:
    async def handler(request: web.Request) -> web.Response:
        packed = zlib.compress(bytes(4 * MAX_ANSWER_BYTES))
        return web.Response(body=packed, headers={"Content-Encoding": "deflate"})

    async def story(client: ServiceClient) -> None:
        with pytest.raises(ServiceUnavailableError, match=r"decode|JSON"):
            await client.report()

    with_service(handler, story)


def test_an_answer_of_deep_lists_is_none() -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(text="[" * 100_000, content_type="application/json")

    async def story(client: ServiceClient) -> None:
        with pytest.raises(ServiceUnavailableError):
            await client.report()

    with_service(handler, story)


def test_the_operator_connects_to_the_pod_that_it_observed() -> None:
    """Any pod with the right labels could answer behind the name of the Service."""

    async def main(address: str) -> None:
        service = ServiceId("uid", 1, KEY.operator, address)
        await ServiceClient(direct_transport(Key("team", "digits"), service), KEY.operator).report()

    for address, problem in (("127.0.0.9", r"127\.0\.0\.9"), ("", "no address yet")):
        with pytest.raises(ServiceUnavailableError, match=problem):
            asyncio.run(main(address))


def test_nobody_there_means_so_too() -> None:
    async def main() -> None:
        client = ServiceClient(connect_directly("127.0.0.1", free_port()), KEY.operator)
        with pytest.raises(ServiceUnavailableError, match=r"127\.0\.0\.1"):
            await client.expect(EXPECTATION)

    asyncio.run(main())


def test_a_connection_that_breaks_means_so_too() -> None:
    async def handler(request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async def story(client: ServiceClient) -> None:
        with pytest.raises(ServiceUnavailableError, match=r".+"):
            await client.report()

    with_service(handler, story)
