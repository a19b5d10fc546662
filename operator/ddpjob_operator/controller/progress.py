"""Observes whether a pass makes progress: each answer to one of its requests counts.

May not: decide how long a pass may go without an answer.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextvars import ContextVar
from typing import Any

from ddpjob_operator.kube.interface import ApiServer
from ddpjob_operator.request import Request

# Called after each request of the present task and of the tasks that it starts.
ON_ANSWER: ContextVar[Callable[[], None]] = ContextVar("on_answer", default=lambda: None)


class ObservedApiServer(ApiServer):
    """A client of the API server whose answers are progress of the pass that sent the request."""

    def __init__(self, kube: ApiServer) -> None:
        self._kube = kube
        self.in_cluster = kube.in_cluster

    async def send(self, request: Request) -> Any:
        """Forward to the client; a failure is an answer, too."""
        try:
            return await self._kube.send(request)
        finally:
            ON_ANSWER.get()()

    def watch(
        self, path: str, *, query: Mapping[str, str], silence: float
    ) -> AsyncIterator[dict[str, Any]]:
        """Forward to the client."""
        return self._kube.watch(path, query=query, silence=silence)

    async def close(self) -> None:
        """Forward to the client."""
        await self._kube.close()
