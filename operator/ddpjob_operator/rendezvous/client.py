"""Reads the report of one job's rendezvous service and sends the expected workers.

Requests use a `Transport`, because they may pass through the API server's proxy.
May not: decide anything or keep state.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import aiohttp

from ddpjob_operator.request import Request
from ddpjob_protocol.addresses import join_address
from ddpjob_protocol.codec import DecodeError, encode, show
from ddpjob_protocol.keys.signed_http import ForgedError, RequestSigner
from ddpjob_protocol.messages.control import Expectation, Report
from ddpjob_protocol.parsers.service_report import parse_report
from ddpjob_protocol.text import excerpt

MARGIN_SECONDS = 5.0  # delay of an answer beyond the requested time
NONCE_BYTES = 16
MAX_REASON = 500  # characters of an error
MAX_ANSWER_BYTES = 4 << 20  # the report of 10,000 workers has 1.7 MB


class ServiceUnavailableError(Exception):
    """The service does not answer; the caller may retry."""


class InvalidReportError(ServiceUnavailableError):
    """The answer of the service is not a report that this operator accepts."""


# Sends a request and returns JSON, or raises ServiceUnavailableError.
Transport = Callable[[Request], Awaitable[Any]]


class ServiceClient:
    """A client of one job's service."""

    def __init__(self, send: Transport, key: bytes) -> None:
        """`key` is the job's key of the operator: see `signed_http`."""
        self._send = send
        self._signer = RequestSigner(key)

    async def report(self, after: int = 0, wait: float = 0.0, *, only_news: bool = False) -> Report:
        """Return the report once its version differs from `after`, or after `wait` seconds.

        With `only_news`, training progress alone does not end the wait.
        """
        query = {"after": str(after), "timeout": f"{wait:g}", "news": str(int(only_news))}
        limit = wait + MARGIN_SECONDS
        answer = await self._ask("GET", "/report", query, None, limit)
        try:
            return parse_report(answer)
        except DecodeError as error:
            raise InvalidReportError(str(error)) from error

    async def expect(self, expectation: Expectation) -> None:
        """Send the expected workers to the service."""
        await self._ask("PUT", "/expected", {}, encode(expectation), MARGIN_SECONDS)

    async def _ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Mapping[str, Any] | None,
        limit: float,
    ) -> Any:
        """Send a proven request, once more with the service's challenge; return the answer."""
        for _ in range(2):
            nonce = secrets.token_hex(NONCE_BYTES)
            headers = self._signer.sign(method, path, query, body, nonce)
            sealed = await self._send(Request(method, path, query, body, headers, limit))
            try:
                answer = self._signer.open(sealed, nonce)
            except (ForgedError, RecursionError) as error:
                raise ServiceUnavailableError(
                    f"the answer to {method} {path} is not of this job's service: {error}"
                ) from error
            if answer is not None:
                return answer.content
        raise ServiceUnavailableError("the service has changed its challenge twice at once")


def connect_directly(host: str, port: int) -> Transport:
    """Return a transport to a service that is reachable by name or address.

    The pod behind it belongs to a tenant: a redirect is refused, and no more than MAX_ANSWER_BYTES
    are read.
    """

    async def send(request: Request) -> Any:
        if not host:
            raise ServiceUnavailableError("the pod of the service has no address yet")
        try:
            async with aiohttp.request(
                request.method,
                f"http://{join_address(host, port)}{request.path}",
                params=request.query,
                headers={**request.headers, "Accept-Encoding": "identity"},
                allow_redirects=False,
                auto_decompress=False,
                data=None if request.body is None else json.dumps(request.body),
                timeout=aiohttp.ClientTimeout(total=request.timeout),
            ) as response:
                answer = json.loads(await _body(response))
        except (
            OSError,
            RecursionError,
            TimeoutError,
            ValueError,
            aiohttp.ClientError,
        ) as error:
            reason = excerpt(str(error), MAX_REASON) or "no answer in time"
            raise ServiceUnavailableError(reason) from error
        if response.status != 200:
            what = f"{request.method} {request.path}: {response.status} {show(answer)}"
            raise ServiceUnavailableError(excerpt(what, MAX_REASON))
        return answer

    return send


async def _body(response: aiohttp.ClientResponse) -> bytes:
    """Return the whole body. Raise ValueError if it is too long."""
    chunks, size = [], 0
    async for chunk in response.content.iter_any():
        size += len(chunk)
        if size > MAX_ANSWER_BYTES:
            raise ValueError(f"the answer has more than {MAX_ANSWER_BYTES} bytes")
        chunks.append(chunk)
    return b"".join(chunks)
