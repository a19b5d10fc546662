"""The client of the API server over real HTTP: what travels, and what becomes of every failure."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from ddpjob_operator.api.stored_job import read_stored_job
from ddpjob_operator.controller.objects.jobs import Jobs
from ddpjob_operator.kube import client
from ddpjob_operator.kube.client import KubeClient
from ddpjob_operator.kube.interface import ApiError, UnreachableError
from ddpjob_operator.local.simulated.rendezvous_process import free_port
from ddpjob_operator.request import Request
from support.http_server import (
    Answer,
    Server,
    answer,
    connected,
    hang_up,
    kubeconfig,
    refusal,
    serving,
    silence,
    stream,
)
from support.objects import job

PODS = "/api/v1/namespaces/default/pods"
PROXIED = "/api/v1/namespaces/default/services/http:digits:8080/proxy/report"
OK = answer({"kind": "Pod"})
BUSY = refusal(429, "TooManyRequests", "slow down", Retry_After="0")
ADDED = {"type": "ADDED", "object": {"metadata": {"name": "a"}}}
DELETED = {"type": "DELETED", "object": {"metadata": {"name": "ä"}}}

Body = Callable[[KubeClient, Server], Awaitable[None]]


@pytest.fixture(autouse=True)
def impatient(nowhere: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "READ_AGAIN_SECONDS", 0.01)


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., None]:
    """Runs the body of a test with a server that gives these answers."""

    def run(body: Body, *answers: Answer) -> None:
        async def main() -> None:
            async with (
                serving(*answers) as server,
                connected(kubeconfig(tmp_path / "kubeconfig", server.url)) as kube,
            ):
                await body(kube, server)

        asyncio.run(main())

    return run


# What travels


def test_what_users_wrote_arrives_unchanged(run: Callable[..., None]) -> None:
    template = {
        "spec": {
            "containers": [{"resources": {"limits": {"cpu": 2, "memory": 1.5e9}}}],
            "fieldOfTomorrow": {"nested": [None, True, 0, "", "ü", {}]},
            "hostPID": "no boolean",
        }
    }

    async def body(kube: KubeClient, server: Server) -> None:
        assert await kube.send(Request("POST", PODS, body=template)) == {"kind": "Pod"}
        [seen] = server.seen
        assert json.loads(seen.body) == template
        assert (seen.method, seen.path) == ("POST", PODS)
        expected = {
            "content-type": "application/json",
            "accept": "application/json",
            "authorization": "Bearer secret",
            "user-agent": "ddpjob-operator",
        }
        assert expected.items() <= seen.headers.items()

    run(body, OK)


def test_a_job_of_any_depth_is_listed_read_and_gets_a_status(run: Callable[..., None]) -> None:
    """An API server stores 10,000 levels; a list with such a job is read, too."""
    version = {**job("digits")["metadata"], "namespace": "default", "resourceVersion": "1"}
    made = json.dumps({**job("digits"), "metadata": version, "spec": {"template": "DEEP"}})
    raw = made.replace('"DEEP"', '{"a":' * 9_990 + "1" + "}" * 9_990)

    async def body(kube: KubeClient, server: Server) -> None:
        jobs = Jobs(kube, [""])
        assert await jobs.list() == {("default", "digits"): False}
        found = await jobs.read("default", "digits")
        assert found is not None
        assert "spec.template: has more than 100 levels" in read_stored_job(found).problems
        await jobs.write_status({**found, "spec": {}}, {"state": "Waiting"})
        sent = json.loads(server.seen[-1].body)
        assert sent["status"] == {"state": "Waiting"}
        assert sent["metadata"].items() <= version.items()
        assert "spec" not in sent

    listed = f'{{"metadata": {{"resourceVersion": "1"}}, "items": [{raw}]}}'
    run(body, answer(listed), answer(raw), OK)


@pytest.mark.parametrize("method", ["PUT", "POST", "DELETE"])
def test_an_empty_body_is_a_body(run: Callable[..., None], method: str) -> None:
    async def body(kube: KubeClient, server: Server) -> None:
        await kube.send(Request(method, PODS, body={}))
        await kube.send(Request(method, PODS))
        assert [seen.body for seen in server.seen] == [b"{}", b""]

    run(body, OK)


def test_a_query_arrives_as_it_was_meant(run: Callable[..., None]) -> None:
    query = {
        "labelSelector": "ddpjob.io/job=a,b in (c,d),!e",
        "continue": "eyJ2IjoibWV0YSJ9+/==&x=%2B y",
        "fieldSelector": "metadata.name=ä",
    }

    async def body(kube: KubeClient, server: Server) -> None:
        await kube.send(Request("GET", PODS, query=query))
        async for _ in kube.watch(PODS, query=query, silence=60):
            pass
        assert [seen.query for seen in server.seen] == [query, {**query, "watch": "true"}]

    run(body, OK, stream())


def test_headers_are_the_callers(run: Callable[..., None]) -> None:
    headers = {"Content-Type": "application/merge-patch+json", "X-Token": "t"}

    async def body(kube: KubeClient, server: Server) -> None:
        await kube.send(Request("PATCH", PODS, body={"a": None}, headers=headers))
        [seen] = server.seen
        assert json.loads(seen.body) == {"a": None}
        assert seen.headers["content-type"] == "application/merge-patch+json"
        assert seen.headers["x-token"] == "t"
        assert headers == {"Content-Type": "application/merge-patch+json", "X-Token": "t"}

    run(body, OK)


def test_no_content_is_none(run: Callable[..., None]) -> None:
    async def body(kube: KubeClient, server: Server) -> None:
        assert await kube.send(Request("GET", PODS)) is None

    run(body, answer(""))


def test_any_number_of_watches_leave_room_for_requests(run: Callable[..., None]) -> None:
    async def body(kube: KubeClient, server: Server) -> None:
        async def either(request: web.Request) -> web.StreamResponse:
            return await (stream(then=silence) if "watch" in request.query else OK)(request)

        server.answers = [either]
        watches = [asyncio.ensure_future(told(kube)) for _ in range(150)]
        await server.until_seen(150)
        assert await kube.send(Request("GET", PODS)) == {"kind": "Pod"}
        for each in watches:
            each.cancel()
        await asyncio.gather(*watches, return_exceptions=True)

    run(body)


# Refusals


@pytest.mark.parametrize(
    ("given", "status", "reason", "message"),
    [
        (
            refusal(409, "AlreadyExists", 'pods "a" already exists'),
            409,
            "AlreadyExists",
            'pods "a" already exists',
        ),
        (refusal(403, "Forbidden", "exceeded quota"), 403, "Forbidden", "exceeded quota"),
        (answer("404 page not found\n", 404), 404, "Not Found", "404 page not found"),
        (answer({"reason": "Mine"}, 400), 400, "Bad Request", '{"reason": "Mine"}'),
        (answer("[1, 2]", 418), 418, "I'm a Teapot", "[1, 2]"),
        (answer("", 500), 500, "Internal Server Error", ""),
        (answer("<html>" + 5000 * "x", 502), 502, "Bad Gateway", "<html>" + 994 * "x"),
        (answer("<html>login</html>"), 200, "NoJSON", "<html>login</html>"),
    ],
    ids=["exists", "forbidden", "text", "json", "list", "nothing", "long", "no json"],
)
def test_a_refusal_is_told_in_the_servers_words(
    run: Callable[..., None], given: Answer, status: int, reason: str, message: str
) -> None:
    async def body(kube: KubeClient, server: Server) -> None:
        with pytest.raises(ApiError) as error:
            await kube.send(Request("POST", PODS, body={}))
        found = error.value
        assert (found.status, found.reason, found.message) == (status, reason, message)
        assert found.retry_after is None
        assert str(status) in str(found)
        assert message in str(found)
        assert len(server.seen) == 1

    run(body, given)


@pytest.mark.parametrize("status", [403, 404, 409, 422])
def test_a_read_that_is_refused_is_not_repeated(run: Callable[..., None], status: int) -> None:
    async def body(kube: KubeClient, server: Server) -> None:
        with pytest.raises(ApiError):
            await kube.send(Request("GET", PODS))
        assert len(server.seen) == 1

    run(body, refusal(status, "Refused", "no"))


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE"])
def test_a_server_that_is_too_busy_is_asked_again(run: Callable[..., None], method: str) -> None:
    async def body(kube: KubeClient, server: Server) -> None:
        assert await kube.send(Request(method, PODS)) == {"kind": "Pod"}
        assert len(server.seen) == 4

    run(body, BUSY, BUSY, BUSY, OK)


def test_a_server_that_is_always_too_busy_is_not_asked_for_ever(run: Callable[..., None]) -> None:
    async def body(kube: KubeClient, server: Server) -> None:
        with pytest.raises(ApiError, match="slow down") as error:
            await kube.send(Request("POST", PODS, body={}))
        assert (error.value.status, error.value.retry_after) == (429, 0)
        assert len(server.seen) == 1 + client.RETRIES_WHEN_THROTTLED

    run(body, BUSY)


def test_who_asks_decides_whether_to_wait_for_long(run: Callable[..., None]) -> None:
    async def body(kube: KubeClient, server: Server) -> None:
        with pytest.raises(ApiError) as error:
            await kube.send(Request("GET", PODS))
        assert error.value.retry_after == 3600
        assert len(server.seen) == 1

    run(body, refusal(429, "TooManyRequests", "come back later", Retry_After="3600"))


def test_a_date_to_come_back_is_not_understood_and_does_no_harm(run: Callable[..., None]) -> None:
    async def body(kube: KubeClient, server: Server) -> None:
        with pytest.raises(ApiError) as error:
            await kube.send(Request("POST", PODS, body={}))
        assert error.value.retry_after is None

    run(body, refusal(503, "Unavailable", "no", Retry_After="Wed, 21 Oct 2026 07:28:00 GMT"))


# Failures


FAILURES = [refusal(503, "ServiceUnavailable", "etcd is away"), hang_up]


@pytest.mark.parametrize("failure", FAILURES, ids=["503", "hangs up"])
def test_a_read_is_repeated_a_little(run: Callable[..., None], failure: Answer) -> None:
    async def body(kube: KubeClient, server: Server) -> None:
        assert await kube.send(Request("GET", PODS)) == {"kind": "Pod"}
        server.answers = [failure]
        with pytest.raises((ApiError, UnreachableError)):
            await kube.send(Request("GET", PODS))

    run(body, failure, failure, OK)


@pytest.mark.parametrize("failure", FAILURES, ids=["503", "hangs up"])
def test_a_write_is_sent_once(run: Callable[..., None], failure: Answer) -> None:
    async def body(kube: KubeClient, server: Server) -> None:
        with pytest.raises((ApiError, UnreachableError)):
            await kube.send(Request("POST", PODS, body={}))
        assert len(server.seen) == 1

    run(body, failure)


@pytest.mark.parametrize("failure", [BUSY, FAILURES[0]], ids=["429", "503"])
def test_what_a_proxied_service_says_is_its_own_word(
    run: Callable[..., None], failure: Answer
) -> None:
    async def body(kube: KubeClient, server: Server) -> None:
        with pytest.raises(ApiError):
            await kube.send(Request("GET", PROXIED))
        assert len(server.seen) == 1

    run(body, failure)


def test_a_namespace_called_proxy_is_no_proxy(run: Callable[..., None]) -> None:
    async def body(kube: KubeClient, server: Server) -> None:
        await kube.send(Request("GET", "/api/v1/namespaces/proxy/services"))
        assert len(server.seen) == 2

    run(body, BUSY, OK)


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_an_answer_that_does_not_come_in_time(run: Callable[..., None], method: str) -> None:
    async def body(kube: KubeClient, server: Server) -> None:
        with pytest.raises(UnreachableError, match=rf"no answer from {server.url} within 0\.05 s"):
            await kube.send(Request(method, PODS, timeout=0.05))
        assert len(server.seen) <= 1

    run(body, silence)


@pytest.mark.parametrize(
    ("then", "message"), [(hang_up, "the connection to .* broke"), (silence, "no answer")]
)
def test_an_answer_that_stops_in_the_middle(
    run: Callable[..., None], then: Answer, message: str
) -> None:
    async def body(kube: KubeClient, server: Server) -> None:
        with pytest.raises(UnreachableError, match=message):
            await kube.send(Request("POST", PODS, body={}, timeout=1))

    run(body, stream(b'{"items": [', then=then))


def test_nobody_listens(tmp_path: Path) -> None:
    async def main() -> None:
        url = f"http://127.0.0.1:{free_port()}"
        async with connected(kubeconfig(tmp_path / "kubeconfig", url)) as kube:
            for asking in (kube.send(Request("GET", PODS)), told(kube)):
                with pytest.raises(UnreachableError, match=rf"{url} cannot be reached: .*onnect"):
                    await asking

    asyncio.run(main())


# Watches


async def follow(
    kube: KubeClient, tell: Callable[[dict[str, Any]], None], silence: float = 60
) -> None:
    async for event in kube.watch(PODS, query={}, silence=silence):
        tell(event)


async def told(kube: KubeClient) -> list[dict[str, Any]]:
    """All events of a watch that ends."""
    found: list[dict[str, Any]] = []
    await follow(kube, found.append)
    return found


def lines(*events: Any) -> bytes:
    return b"".join(json.dumps(event, ensure_ascii=False).encode() + b"\n" for event in events)


@pytest.mark.parametrize(
    "pieces",
    [
        [lines(ADDED, DELETED)],
        [bytes([byte]) for byte in lines(ADDED, DELETED)],
        [lines(ADDED) + lines(DELETED)[:-5], lines(DELETED)[-5:]],
        [b"\n\n" + lines(ADDED) + b" \n", lines(DELETED)],
    ],
    ids=["at once", "byte by byte", "cut", "empty lines"],
)
def test_events_come_however_they_travel(run: Callable[..., None], pieces: list[bytes]) -> None:
    async def body(kube: KubeClient, server: Server) -> None:
        assert await told(kube) == [ADDED, DELETED]

    run(body, stream(*pieces))


def test_an_event_may_be_long(run: Callable[..., None]) -> None:
    long = {"type": "ADDED", "object": {"data": 3_000_000 * "x"}}

    async def body(kube: KubeClient, server: Server) -> None:
        assert await told(kube) == [ADDED, long, DELETED]

    run(body, stream(lines(ADDED, long, DELETED)))


def test_an_event_that_tells_an_error_is_an_event(run: Callable[..., None]) -> None:
    error = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired"}}

    async def body(kube: KubeClient, server: Server) -> None:
        assert await told(kube) == [error]

    run(body, stream(lines(error)))


def test_a_watch_that_is_refused(run: Callable[..., None]) -> None:
    async def body(kube: KubeClient, server: Server) -> None:
        with pytest.raises(ApiError, match="too old") as error:
            await told(kube)
        assert error.value.status == 410
        assert len(server.seen) == 1

    run(body, refusal(410, "Expired", "too old resource version"))


@pytest.mark.parametrize(
    ("then", "message"),
    [(silence, "no answer from .* within 0.5 s"), (hang_up, "the connection to .* broke")],
    ids=["silence", "hangs up"],
)
def test_a_watch_that_breaks_off(run: Callable[..., None], then: Answer, message: str) -> None:
    async def body(kube: KubeClient, server: Server) -> None:
        found: list[dict[str, Any]] = []
        with pytest.raises(UnreachableError, match=message):
            await follow(kube, found.append, silence=0.5)
        assert found == [ADDED]

    run(body, stream(lines(ADDED) + b'{"type": "DEL', then=then))


def test_a_watch_of_something_else(run: Callable[..., None]) -> None:
    async def body(kube: KubeClient, server: Server) -> None:
        with pytest.raises(UnreachableError, match="not an event: <html>"):
            await told(kube)

    run(body, stream(b"<html>\n"))
