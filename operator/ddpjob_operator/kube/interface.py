"""The Kubernetes API server as the operator uses it: JSON in, JSON out, and two errors.

May not: open a connection, know any kind of object, or decide anything.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, Protocol

from ddpjob_operator.request import Request

NOT_FOUND, CONFLICT = 404, 409  # `ApiError.status`


class ApiError(Exception):
    """The API server rejected a request."""

    def __init__(
        self, status: int, reason: str, message: str, retry_after: float | None = None
    ) -> None:
        super().__init__(status, reason, message)
        self.status = status
        self.reason = reason  # one word, such as AlreadyExists, Forbidden, Invalid
        self.message = message  # text from the server
        self.retry_after = retry_after

    def __str__(self) -> str:
        return f"{self.message or 'no message'} ({self.status} {self.reason})"

    @property
    def exists(self) -> bool:
        """True if the object of a creation exists; a quota's conflict has the same status."""
        return self.reason == "AlreadyExists"


class UnreachableError(Exception):
    """No answer arrived; the server may have executed a write."""


class ApiServer(Protocol):
    """An API server."""

    in_cluster: bool  # the operator can reach services by name

    async def send(self, request: Request) -> Any:
        """Return the answer's JSON; raise ApiError or UnreachableError. Each attempt may time out."""

    def watch(
        self, path: str, *, query: Mapping[str, str], silence: float
    ) -> AsyncIterator[dict[str, Any]]:
        """Yield events, including errors, until the server ends the watch; raise as `send`.

        If no byte arrives for `silence` seconds, the server counts as unreachable.
        """

    async def close(self) -> None:
        """Close all connections."""


async def pages(
    kube: ApiServer, path: str, query: Mapping[str, str]
) -> AsyncIterator[dict[str, Any]]:
    """Yield the pages of a list; the query sets their length."""
    query = dict(query)
    while True:
        page = await kube.send(Request("GET", path, query=query))
        yield page
        if not page["metadata"].get("continue"):
            return
        query = {**query, "continue": page["metadata"]["continue"]}
