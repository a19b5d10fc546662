"""The rendezvous service's API for the operator: minimal HTTP/1.1 on the port of the agents.

The protocol is HTTP, because the operator may reach the service only through the API server's
proxy.

    GET /healthz                     200 while the service answers; needs no proof
    GET /report?after=V&timeout=S    the Report as JSON as soon as its version is not V, at the
                                     latest after S seconds; with &news=1, progress alone does
                                     not cause an answer
    PUT /expected                    an Expectation as JSON

Each connection serves one request. Requests and answers but /healthz are proven: see `signed_http`.
The body is read only after the proof in the head was verified, so that a peer without the key costs
little memory. Decides nothing.
"""

from __future__ import annotations

import asyncio
import json
import os
from typing import TYPE_CHECKING, Any, Callable, NamedTuple
from urllib.parse import SplitResult, parse_qsl, urlsplit

from ddpjob_agent.net.sockets.listening import STREAM_BYTES
from ddpjob_protocol.codec import encode, show
from ddpjob_protocol.keys.signed_http import (
    PROOF_HEADER,
    ForgedError,
    Proof,
    RequestVerifier,
    digest_of,
)
from ddpjob_protocol.messages.control import Expectation, Report
from ddpjob_protocol.parsers import checks
from ddpjob_protocol.parsers.expectation_check import parse_expectation

if TYPE_CHECKING:
    from collections.abc import Coroutine

METHODS = (b"GET /", b"PUT /")  # first five bytes of a request; agents send MAGIC instead
MAX_BODY_BYTES = 4 << 20
MAX_POLL_SECONDS = 60.0
REQUEST_SECONDS = 10.0
CHALLENGE_BYTES = 16


class _HttpError(Exception):
    def __init__(self, status: str, message: str) -> None:
        super().__init__(message)
        self.status = status


class OperatorApi:
    """The service's side of the HTTP API."""

    def __init__(
        self,
        key: bytes,
        report_after: Callable[[int, float, bool], Coroutine[Any, Any, Report]],
        expect: Callable[[Expectation], None],
    ) -> None:
        self._verifier = RequestVerifier(key, lambda: os.urandom(CHALLENGE_BYTES).hex())
        self._report_after = report_after
        self._expect = expect

    async def serve(
        self,
        first: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        authenticated: Callable[[], None],
    ) -> None:
        """Answer the request that begins with `first`; call `authenticated` if it is proven."""
        unread = 0
        try:
            head = await _read_head(first, reader)
            unread = head.length
            proof = self._verify(head)
            if proof is not None:
                authenticated()
            body = await asyncio.wait_for(_read_body(head, reader), REQUEST_SECONDS)
            unread = 0
            answer = {"ok": True} if proof is None else await self._answer(head, body, proof)
            _respond(writer, "200 OK", answer)
        except _HttpError as error:
            _respond(writer, error.status, {"error": str(error)})
        except (asyncio.TimeoutError, asyncio.IncompleteReadError):
            _respond(writer, "400 Bad Request", {"error": "the request did not arrive whole"})
        await writer.drain()
        await _discard(reader, unread)

    def _verify(self, head: _Head) -> Proof | None:
        """Return the proof in the head; None if the request needs none. Raise _HttpError."""
        if head.is_health_check:
            return None
        try:
            given = head.headers.get(PROOF_HEADER.lower(), "")
            return self._verifier.verify(head.method, head.url.path, head.query.items(), given)
        except ForgedError as error:
            raise _HttpError("403 Forbidden", str(error)) from error

    async def _answer(self, head: _Head, body: bytes, proof: Proof) -> dict[str, Any]:
        query = head.query
        try:
            content = json.loads(body) if body else None
            if digest_of(content) != proof.digest:
                raise _HttpError("403 Forbidden", "the body is not the one that was proven")
            if not proof.is_fresh:
                return self._verifier.challenge(proof)
            if (head.method, head.url.path) == ("GET", "/report"):
                after = checks.count(int(query.get("after", "0")), "after")
                seconds = checks.seconds(float(query.get("timeout", "0")), "timeout")
                seconds, only_news = min(seconds, MAX_POLL_SECONDS), query.get("news") == "1"
                report = await self._report_after(after, seconds, only_news)
                return self._verifier.seal(encode(report), proof)
            if (head.method, head.url.path) == ("PUT", "/expected"):
                self._expect(parse_expectation(content))
                return self._verifier.seal({"ok": True}, proof)
        except (KeyError, RecursionError, TypeError, ValueError) as error:
            raise _HttpError("400 Bad Request", f"cannot read the request: {error}") from error
        raise _HttpError("404 Not Found", f"no {show(head.method)} {show(head.url.path)} here")


class _Head(NamedTuple):
    method: str
    url: SplitResult
    headers: dict[str, str]
    length: int  # bytes of the body

    @property
    def query(self) -> dict[str, str]:
        return dict(parse_qsl(self.url.query, keep_blank_values=True))

    @property
    def is_health_check(self) -> bool:
        return (self.method, self.url.path) == ("GET", "/healthz")


async def _read_head(first: bytes, reader: asyncio.StreamReader) -> _Head:
    try:
        head = (first + await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.LimitOverrunError as error:
        status = "431 Request Header Fields Too Large"
        raise _HttpError(status, f"a head above {STREAM_BYTES} bytes") from error
    line, *rest = head.rstrip("\r\n").split("\r\n")
    try:
        method, target, _ = line.split(" ")
        pairs = (field.split(":", 1) for field in rest)
        headers = {name.strip().lower(): value.strip() for name, value in pairs}
        length = int(headers.get("content-length", "0"))
        if length < 0:
            raise ValueError("a negative length")
        return _Head(method, urlsplit(target), headers, length)
    except ValueError as error:
        raise _HttpError("400 Bad Request", "not a request") from error


async def _read_body(head: _Head, reader: asyncio.StreamReader) -> bytes:
    most = 0 if head.is_health_check else MAX_BODY_BYTES
    if head.length > most:
        raise _HttpError("413 Content Too Large", f"a body of {head.length} bytes, not {most}")
    return await reader.readexactly(head.length)


async def _discard(reader: asyncio.StreamReader, length: int) -> None:
    """Discard a short body that was refused: a client that still sends it gets the answer."""
    left = length if length <= STREAM_BYTES else 0
    while left and (data := await reader.read(left)):
        left -= len(data)


def _respond(writer: asyncio.StreamWriter, status: str, answer: dict[str, Any]) -> None:
    body = json.dumps(answer).encode()
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    writer.write(head.encode() + body)
