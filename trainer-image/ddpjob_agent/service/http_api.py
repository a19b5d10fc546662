"""The rendezvous service's API for the operator: minimal HTTP/1.1 on the port of the agents.

The protocol is HTTP, because the operator may reach the service only through the API server's
proxy.

    GET /healthz                     200 while the service answers; needs no token
    GET /report?after=V&timeout=S    the Report as JSON as soon as its version is not V, at the
                                     latest after S seconds; with &news=1, progress alone does
                                     not cause an answer
    PUT /expected                    an Expectation as JSON

Each connection serves one request. Decides nothing.
"""

from __future__ import annotations

import asyncio
import hmac
import json
from typing import TYPE_CHECKING, Any, Callable
from urllib.parse import parse_qs, urlsplit

from ddpjob_protocol.codec import decode, encode
from ddpjob_protocol.control import TOKEN_HEADER, Expectation, Report

if TYPE_CHECKING:
    from collections.abc import Coroutine

METHODS = (b"GET /", b"PUT /")  # first five bytes of a request; agents send MAGIC instead
MAX_HEAD_BYTES = 16 << 10
MAX_BODY_BYTES = 4 << 20
MAX_POLL_SECONDS = 60.0
REQUEST_SECONDS = 10.0


class _HttpError(Exception):
    def __init__(self, status: str, message: str) -> None:
        super().__init__(message)
        self.status = status


class OperatorApi:
    """The service's side of the HTTP API."""

    def __init__(
        self,
        token: str,
        report_after: Callable[[int, float, bool], Coroutine[Any, Any, Report]],
        expect: Callable[[Expectation], None],
    ) -> None:
        self._token = token
        self._report_after = report_after
        self._expect = expect

    async def serve(
        self, first: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Answer the request that begins with `first`."""
        try:
            request = await asyncio.wait_for(_read_request(first, reader), REQUEST_SECONDS)
            answer = await self._answer(*request)
            _respond(writer, "200 OK", answer)
        except _HttpError as error:
            _respond(writer, error.status, {"error": str(error)})
        except (asyncio.TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            _respond(writer, "400 Bad Request", {"error": "the request did not arrive whole"})
        await writer.drain()

    async def _answer(
        self, method: str, target: str, headers: dict[str, str], body: bytes
    ) -> dict[str, Any]:
        url = urlsplit(target)
        if (method, url.path) == ("GET", "/healthz"):
            return {"ok": True}
        given = headers.get(TOKEN_HEADER.lower(), "")
        if not hmac.compare_digest(given.encode(), self._token.encode()):
            raise _HttpError("403 Forbidden", f"{TOKEN_HEADER} does not hold this job's token")
        try:
            if (method, url.path) == ("GET", "/report"):
                query = parse_qs(url.query)
                after = int(query.get("after", ["0"])[0])
                seconds = min(float(query.get("timeout", ["0"])[0]), MAX_POLL_SECONDS)
                only_news = query.get("news", ["0"])[0] == "1"
                report: dict[str, Any] = encode(await self._report_after(after, seconds, only_news))
                return report
            if (method, url.path) == ("PUT", "/expected"):
                self._expect(decode(Expectation, json.loads(body)))
                return {"ok": True}
        except (KeyError, RecursionError, TypeError, ValueError) as error:
            raise _HttpError("400 Bad Request", f"cannot read the request: {error}") from error
        raise _HttpError("404 Not Found", f"no {method} {url.path} here")


async def _read_request(
    first: bytes, reader: asyncio.StreamReader
) -> tuple[str, str, dict[str, str], bytes]:
    head = (first + await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    if len(head) > MAX_HEAD_BYTES:
        raise _HttpError("431 Request Header Fields Too Large", "the head is too large")
    line, *rest = head.rstrip("\r\n").split("\r\n")
    try:
        method, target, _ = line.split(" ")
        pairs = (field.split(":", 1) for field in rest)
        headers = {name.strip().lower(): value.strip() for name, value in pairs}
        length = int(headers.get("content-length", "0"))
    except ValueError as error:
        raise _HttpError("400 Bad Request", "not a request") from error
    if not 0 <= length <= MAX_BODY_BYTES:
        raise _HttpError("413 Content Too Large", f"a body of {length} bytes")
    return method, target, headers, await reader.readexactly(length)


def _respond(writer: asyncio.StreamWriter, status: str, answer: dict[str, Any]) -> None:
    body = json.dumps(answer).encode()
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    writer.write(head.encode() + body)
