"""The operator's way to the API server: everything is recorded, and it can be killed on the way."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from ddpjob_operator.kube.interface import ApiServer
from ddpjob_operator.request import Request

Send = Callable[[Request], Awaitable[Any]]


class Call(NamedTuple):
    """One request of the operator."""

    method: str
    path: str
    body: Mapping[str, Any] | None

    @property
    def kind(self) -> str:
        """Such as `PUT ddpjobs/status`."""
        parts = self.path.split("/")
        plural = parts.index("namespaces") + 2 if "namespaces" in parts else len(parts) - 1
        return f"{self.method} {'/'.join([parts[plural], *parts[plural + 2 :]])}"


class Wire(ApiServer):
    """Hands on what the operator asks for, until it is dead."""

    in_cluster = False

    def __init__(self, kube: ApiServer) -> None:
        self._kube = kube
        self.calls: list[Call] = []
        self.before: Callable[[Call], Awaitable[None]] = nothing
        self.changes = 0  # of what the API server has
        self.writes = 0  # these, and the expectations of a rendezvous service
        self.die_after: int | None = None  # number of writes; the last answer gets lost
        self.dead = asyncio.Event()

    def counts(self) -> Counter[str]:
        """The number of requests of each kind."""
        return Counter(call.kind for call in self.calls)

    async def send(self, request: Request) -> Any:
        await self.still_alive()
        call = Call(request.method, request.path, request.body)
        self.calls.append(call)
        await self.before(call)
        answer = await self._kube.send(request)
        self.changes += request.method != "GET"
        await self.written(call)
        return answer

    async def reach(self, send: Send, request: Request) -> Any:
        """Send a request to a rendezvous service."""
        await self.still_alive()
        answer = await send(request)
        await self.written(Call(request.method, request.path, request.body))
        return answer

    async def written(self, call: Call) -> None:
        """A write was executed: the operator may die before the answer."""
        if call.method != "GET":
            self.writes += 1
            if self.writes == self.die_after:
                self.dead.set()
        await self.still_alive()

    async def still_alive(self) -> None:
        """Return only then."""
        if self.dead.is_set():
            await asyncio.get_running_loop().create_future()

    async def watch(
        self, path: str, *, query: Mapping[str, str], silence: float
    ) -> AsyncIterator[dict[str, Any]]:
        await self.still_alive()
        self.calls.append(Call("WATCH", path, None))
        events = self._kube.watch(path, query=query, silence=silence)
        assert isinstance(events, AsyncGenerator)
        try:
            async for event in events:
                await self.still_alive()
                yield event
            await self.still_alive()
        finally:
            await events.aclose()

    async def close(self) -> None:
        """Keep the connection open: another object owns it."""


async def nothing(call: Call) -> None:
    """Do not interfere."""
