"""Speaks to the rendezvous service of one job: its report, and whom it may expect.

May not: decide anything or keep state.
"""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from typing import Any

from ddpjob_agent.contract import TOKEN_HEADER, Expectation, Report

MARGIN_SECONDS = 5.0  # a poll may answer later than asked by this much


class ServiceUnavailableError(Exception):
    """The service does not answer now; try again."""


class ServiceClient:
    """One service at one address."""

    def __init__(self, url: str, token: str) -> None:
        self._url = url
        self._token = token

    async def report(self, after: int = 0, timeout: float = 0.0) -> Report:
        """The report as soon as its version is not `after`, at the latest after `timeout` s."""
        path = f"/report?after={after}&timeout={timeout:g}"
        return Report.from_json(await self._request("GET", path, None, timeout + MARGIN_SECONDS))

    async def expect(self, expectation: Expectation) -> None:
        """Tell the service which workers to count on."""
        await self._request("PUT", "/expected", expectation.to_json(), MARGIN_SECONDS)

    async def _request(self, method: str, path: str, body: Any, timeout: float) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self._url + path, data=data, method=method, headers={TOKEN_HEADER: self._token}
        )
        try:
            return await asyncio.to_thread(_open, request, timeout)
        except (OSError, ValueError) as error:
            raise ServiceUnavailableError(str(error)) from error


def _open(request: urllib.request.Request, timeout: float) -> Any:
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        return json.load(answer)
