"""What a Kubernetes API server is to the operator: JSON in, JSON out, and two errors.

May not: open a connection, know any kind of object, or decide anything.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, Protocol


class ApiError(Exception):
    """The API server refused."""

    def __init__(
        self, status: int, reason: str, message: str, retry_after: float | None = None
    ) -> None:
        super().__init__(status, reason, message)
        self.status = status
        self.reason = reason  # one word, such as AlreadyExists, Forbidden, Invalid
        self.message = message  # in the server's words
        self.retry_after = retry_after

    def __str__(self) -> str:
        return f"{self.message or 'no message'} ({self.status} {self.reason})"


class UnreachableError(Exception):
    """No answer came; whether a write was executed is not known."""


class ApiServer(Protocol):
    """An API server."""

    in_cluster: bool  # services can be reached by their names

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = 30,  # noqa: ASYNC109 - handed on to the client, which can tell why it ended
    ) -> Any:
        """The answer's JSON; raises ApiError or UnreachableError. The time-out is each attempt's."""

    def watch(
        self, path: str, *, query: Mapping[str, str], silence: float
    ) -> AsyncIterator[dict[str, Any]]:
        """Events, errors among them, until the server ends it; raises as `request` does.

        `silence` without a byte, in seconds, counts as unreachable.
        """

    async def close(self) -> None:
        """End all connections."""


async def pages(
    kube: ApiServer, path: str, query: Mapping[str, str]
) -> AsyncIterator[dict[str, Any]]:
    """A list, page by page; the query says how long one is."""
    query = dict(query)
    while True:
        page = await kube.request("GET", path, query=query)
        yield page
        if not page["metadata"].get("continue"):
            return
        query = {**query, "continue": page["metadata"]["continue"]}
