"""A scripted HTTP server in the place of an API server, and ways to find it.

Certificate and key are only for these tests: self-signed for 127.0.0.1, valid until 2120.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer

from ddpjob_operator.kube.client import KubeClient

CERTIFICATE = """\
-----BEGIN CERTIFICATE-----
MIIBzDCCAXKgAwIBAgIBATAKBggqhkjOPQQDAjAjMSEwHwYDVQQDDBhmb3IgdGVz
dHMgb2YgZGRwam9iIG9ubHkwIBcNMjAwMTAxMDAwMDAwWhgPMjEyMDAxMDEwMDAw
MDBaMCMxITAfBgNVBAMMGGZvciB0ZXN0cyBvZiBkZHBqb2Igb25seTBZMBMGByqG
SM49AgEGCCqGSM49AwEHA0IABGb2C0MDkldLXXJCGUs2LgowehB1j0hDiDNAVA28
2DGcK0BFq7weUSRqLusLLjk78RZ8Ms217VmbEHjpGgCiAmijgZQwgZEwDwYDVR0R
BAgwBocEfwAAATAPBgNVHRMBAf8EBTADAQH/MA4GA1UdDwEB/wQEAwIChDAdBgNV
HSUEFjAUBggrBgEFBQcDAQYIKwYBBQUHAwIwHQYDVR0OBBYEFF2WLwP5nB4LLVbW
77lR/DzdmBLyMB8GA1UdIwQYMBaAFF2WLwP5nB4LLVbW77lR/DzdmBLyMAoGCCqG
SM49BAMCA0gAMEUCIHHGgldKTAgQ83wBu44OWLvwtedlGw9BYEr2j0hIZZE4AiEA
4fcH05RO5bDiAF8/HEh+otdgfxooksN5znzvkKfud1I=
-----END CERTIFICATE-----
"""
KEY = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgq+cVHUHsXHpMEEzc
mjpxjmyUtCIEPS031i2gUwwnqWehRANCAARm9gtDA5JXS11yQhlLNi4KMHoQdY9I
Q4gzQFQNvNgxnCtARau8HlEkai7rCy45O/EWfDLNte1ZmxB46RoAogJo
-----END PRIVATE KEY-----
"""

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclasses.dataclass
class Seen:
    """A request."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]  # names in lower case
    body: bytes


class Server:
    """Sends the given answers: first one after the other, then always the last."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers) or [answer({})]
        self.seen: list[Seen] = []
        self.news = asyncio.Event()
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        headers = {name.lower(): value for name, value in request.headers.items()}
        query = dict(request.query)
        self.seen.append(Seen(request.method, request.path, query, headers, await request.read()))
        self.news.set()
        found = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return await found(request)

    async def until_seen(self, count: int) -> None:
        """Wait for `count` requests."""
        while len(self.seen) < count:
            self.news.clear()
            await self.news.wait()

    def tokens(self) -> list[str]:
        """With which the requests were signed."""
        return [seen.headers.get("authorization", "").partition(" ")[2] for seen in self.seen]


@contextlib.asynccontextmanager
async def serving(
    *answers: Answer, tls: bool = False, folder: Path | None = None
) -> AsyncIterator[Server]:
    """A server that runs."""
    server = Server(*answers)
    app = web.Application(client_max_size=1 << 24)
    app.router.add_route("*", "/{path:.*}", server.handle)
    context = None
    if tls:
        assert folder
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*tls_files(folder))
    http = TestServer(app, host="127.0.0.1", scheme="https" if tls else "http")
    await http.start_server(ssl=context)
    server.url = str(http.make_url("")).rstrip("/")
    try:
        yield server
    finally:
        await http.close()


def tls_files(folder: Path) -> tuple[Path, Path]:
    """Certificate, which is its own authority, and key."""
    certificate, key = folder / "ca.crt", folder / "tls.key"
    certificate.write_text(CERTIFICATE)
    key.write_text(KEY)
    return certificate, key


def kubeconfig(
    path: Path,
    url: str,
    user: dict[str, Any] | None = None,
    cluster: dict[str, Any] | None = None,
    current: str = "here",
) -> str:
    """A kubeconfig with one context, `here`."""
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": current,
        "contexts": [{"name": "here", "context": {"cluster": "one", "user": "me"}}],
        "clusters": [{"name": "one", "cluster": {"server": url, **(cluster or {})}}],
        "users": [{"name": "me", "user": {"token": "secret"} if user is None else user}],
    }
    path.write_text(yaml.safe_dump(content))
    return str(path)


@contextlib.asynccontextmanager
async def connected(
    kubeconfig: str | None = None, context: str | None = None
) -> AsyncIterator[KubeClient]:
    """A client, closed in the end."""
    kube = await KubeClient.connect(kubeconfig, context)
    try:
        yield kube
    finally:
        await kube.close()


# --- answers --------------------------------------------------------------------------------------


def answer(body: Any, status: int = 200, **headers: str) -> Answer:
    """JSON, or text as it is."""
    text = body if isinstance(body, str) else json.dumps(body)
    kind = "text/plain" if isinstance(body, str) else "application/json"
    named = {name.replace("_", "-"): value for name, value in headers.items()}

    async def respond(request: web.Request) -> web.Response:
        return web.Response(text=text, status=status, content_type=kind, headers=named)

    return respond


def refusal(status: int, reason: str, message: str, **headers: str) -> Answer:
    """Return a rejection of the API server."""
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": status}
    return answer({**body, "reason": reason, "message": message}, status, **headers)


def stream(*pieces: bytes, then: Answer | None = None) -> Answer:
    """A body that comes in pieces."""

    async def respond(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        for piece in pieces:
            await response.write(piece)
            for _ in range(5):  # the client, in the same loop, takes each piece by itself
                await asyncio.sleep(0)
        if then is not None:
            await then(request)
        return response

    return respond


async def silence(request: web.Request) -> web.StreamResponse:
    """No answer, for as long as the client waits."""
    await asyncio.Event().wait()
    return web.Response()


async def hang_up(request: web.Request) -> web.StreamResponse:
    """No answer; the connection is gone."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()
