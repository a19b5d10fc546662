"""An operator's way to an API server on which any request may fail, and any event may be lost."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from random import Random
from typing import Any

from ddpjob_operator.kube.interface import ApiError, ApiServer, UnreachableError
from ddpjob_operator.rendezvous.client import ServiceUnavailableError
from ddpjob_operator.request import Request
from support.reconciling.wire import Call, Send, Wire

READ_ERRORS = (
    ApiError(429, "TooManyRequests", "too many requests", retry_after=1.0),
    ApiError(500, "InternalError", "etcdserver: request timed out"),
    ApiError(503, "ServiceUnavailable", "apiserver is shutting down"),
    ApiError(410, "Expired", "the provided continue parameter is too old"),
)
WRITE_ERRORS = (
    *READ_ERRORS[:3],
    ApiError(409, "Conflict", 'Operation cannot be fulfilled on resourcequotas "few"'),
    ApiError(403, "Forbidden", "exceeded quota: few"),
    ApiError(422, "Invalid", "a webhook refuses it for a moment"),
)
ANSWER_SECONDS = 0.02
LONGEST_DELAY_SECONDS = 8.0


class FaultyWire(Wire):
    """Hands on requests and events; each fails, is late or gets lost with the probability `rate`.

    `faults` counts each kind of fault, and each kind of write whose answer was lost.
    """

    def __init__(self, kube: ApiServer, random: Random, faults: Counter[str]) -> None:
        super().__init__(kube)
        self.rate = 0.0
        self.faults = faults
        self._random = random

    async def send(self, request: Request) -> Any:
        await asyncio.sleep(ANSWER_SECONDS)
        if not self._fails():
            return await super().send(request)
        fault = self._random.choice(("refused", "lost", "unsent", "late"))
        if fault == "refused":
            errors = READ_ERRORS if request.method == "GET" else WRITE_ERRORS
            error = self._random.choice(errors)
            self.faults[str(error.status)] += 1
            raise error
        return await self._spoil(super().send, request, fault, UnreachableError)

    async def reach(self, send: Send, request: Request) -> Any:
        if request.method == "GET" or not self._fails():
            return await super().reach(send, request)
        reach = functools.partial(super().reach, send)
        fault = self._random.choice(("lost", "unsent", "late"))
        return await self._spoil(reach, request, fault, ServiceUnavailableError)

    async def _spoil(self, send: Send, request: Request, fault: str, error: type[Exception]) -> Any:
        """Send a request, late or not at all; lose the answer, or return it late."""
        self.faults[f"{fault} request"] += 1
        if fault == "lost":
            self.faults[f"lost answer: {Call(request.method, request.path, None).kind}"] += 1
        answer = None if fault == "unsent" else await send(request)
        await self._wait()
        if fault != "late":
            raise error("no answer in time")
        return answer

    async def watch(
        self, path: str, *, query: Mapping[str, str], silence: float
    ) -> AsyncIterator[dict[str, Any]]:
        events = super().watch(path, query=query, silence=silence)
        assert isinstance(events, AsyncGenerator)
        overtaken: list[dict[str, Any]] = []
        async with contextlib.aclosing(events):
            async for event in events:
                fault = self._random.choice(FAULTS_OF_EVENTS) if self._fails() else ""
                self.faults[f"{fault} event"] += bool(fault)
                if fault == "gone":
                    yield {"type": "ERROR", "object": {"code": 410, "reason": "Expired"}}
                    return
                if fault == "broken":
                    raise UnreachableError("the connection was reset")
                if fault == "overtaken":
                    overtaken.append(event)
                if fault in ("lost", "overtaken"):
                    continue
                if fault == "late":
                    await self._wait()
                yield event
                for each in overtaken:
                    yield each
                overtaken.clear()

    def _fails(self) -> bool:
        return self._random.random() < self.rate

    async def _wait(self) -> None:
        await asyncio.sleep(self._random.uniform(0, LONGEST_DELAY_SECONDS))


FAULTS_OF_EVENTS = ("lost", "lost", "late", "overtaken", "gone", "broken")
