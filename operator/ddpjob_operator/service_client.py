"""Speaks to the rendezvous service of one job: its report, and whom it may expect.

May not: decide anything or keep state.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
from typing import Any

from ddpjob_agent.contract import TOKEN_HEADER, Expectation, Report

MARGIN_SECONDS = 5.0  # an answer may come later than asked for by this much


class ServiceUnavailableError(Exception):
    """The service does not answer now; try again."""


class ServiceClient:
    """One service at one address."""

    def __init__(self, host: str, port: int, token: str) -> None:
        self._host = host
        self._port = port
        self._token = token

    async def report(self, after: int = 0, wait: float = 0.0) -> Report:
        """The report as soon as its version is not `after`, at the latest after `wait` seconds."""
        path = f"/report?after={after}&timeout={wait:g}"
        return Report.from_json(await asyncio.to_thread(self._request, "GET", path, None, wait))

    async def expect(self, expectation: Expectation) -> None:
        """Tell the service which workers to count on."""
        body = json.dumps(expectation.to_json())
        await asyncio.to_thread(self._request, "PUT", "/expected", body, 0.0)

    def _request(self, method: str, path: str, body: str | None, wait: float) -> Any:
        connection = http.client.HTTPConnection(
            self._host, self._port, timeout=wait + MARGIN_SECONDS
        )
        with contextlib.closing(connection):
            try:
                connection.request(method, path, body, {TOKEN_HEADER: self._token})
                response = connection.getresponse()
                answer = json.load(response)
            except (OSError, http.client.HTTPException, ValueError) as error:
                raise ServiceUnavailableError(str(error)) from error
        if response.status != http.client.OK:
            raise ServiceUnavailableError(f"{method} {path}: {response.status} {answer}")
        return answer
