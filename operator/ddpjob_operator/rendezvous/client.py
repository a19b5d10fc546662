"""Reads the report of one job's rendezvous service and sends the expected workers.

Requests use a `Transport`, because they may pass through the API server's proxy.
May not: decide anything or keep state.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Mapping
from typing import Any, Protocol

import aiohttp

from ddpjob_protocol.codec import decode, encode
from ddpjob_protocol.control import TOKEN_HEADER, Expectation, Report

MARGIN_SECONDS = 5.0  # delay of an answer beyond the requested time


class ServiceUnavailableError(Exception):
    """The service does not answer; the caller may retry."""


class Transport(Protocol):
    """A function that sends a request and returns JSON or raises ServiceUnavailableError."""

    def __call__(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        body: Mapping[str, Any] | None,
        timeout: float,
    ) -> Awaitable[Any]:
        """Send the request; `timeout` is in seconds."""
        ...


class ServiceClient:
    """A client of one job's service."""

    def __init__(self, send: Transport, token: str) -> None:
        self._send = send
        self._headers = {TOKEN_HEADER: token}

    async def report(self, after: int = 0, wait: float = 0.0, *, only_news: bool = False) -> Report:
        """Return the report once its version differs from `after`, or after `wait` seconds.

        With `only_news`, training progress alone does not end the wait.
        """
        query = {"after": str(after), "timeout": f"{wait:g}", "news": str(int(only_news))}
        answer = await self._request("GET", "/report", query, None, wait)
        try:
            return decode(Report, answer)
        except (KeyError, TypeError, ValueError) as error:
            raise ServiceUnavailableError(f"the answer is not a report: {error!r}") from error

    async def expect(self, expectation: Expectation) -> None:
        """Send the expected workers to the service."""
        await self._request("PUT", "/expected", {}, encode(expectation), 0.0)

    async def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Mapping[str, Any] | None,
        wait: float,
    ) -> Any:
        return await self._send(
            method,
            path,
            query=query,
            headers=self._headers,
            body=body,
            timeout=wait + MARGIN_SECONDS,
        )


def connect_directly(host: str, port: int) -> Transport:
    """Return a transport to a service that is reachable by name or address."""

    async def send(
        method: str,
        path: str,
        *,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        body: Mapping[str, Any] | None,
        timeout: float,  # noqa: ASYNC109 - the client knows the cause
    ) -> Any:
        try:
            async with aiohttp.request(
                method,
                f"http://{host}:{port}{path}",
                params=query,
                headers=headers,
                data=None if body is None else json.dumps(body),
                timeout=aiohttp.ClientTimeout(total=timeout),
            ) as response:
                answer = await response.json()
        except (OSError, TimeoutError, ValueError, aiohttp.ClientError) as error:
            raise ServiceUnavailableError(str(error) or "no answer in time") from error
        if response.status != 200:
            raise ServiceUnavailableError(f"{method} {path}: {response.status} {answer}")
        return answer

    return send
