"""RendezvousSession: when an expectation is sent, and how the polling ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from ddpjob_operator.rendezvous.client import ServiceClient, ServiceUnavailableError
from ddpjob_operator.rendezvous.session import Polling, RendezvousSession
from ddpjob_operator.request import Request
from ddpjob_protocol.messages.control import Expectation
from support import fake_time
from support.keys import KEY
from support.reconciling.training import Service

ONE, TWO = Expectation(workers=("a",)), Expectation(workers=("a", "b"))
POLLING = Polling(wait_seconds=30.0, longest_retry_seconds=0.2, only_news=False)


class Shell:
    """A session with a service that the test has, and when it called back."""

    def __init__(self) -> None:
        self.service: Service | None = Service(1, KEY, None, pod="x")
        self.calls: list[float] = []
        self.error: Exception | None = None
        self.session = RendezvousSession(
            ServiceClient(self._send, KEY.operator), POLLING, self.called
        )

    def called(self) -> None:
        self.calls.append(asyncio.get_running_loop().time())

    def last_error(self) -> str | None:
        """The error of a silent service."""
        silence = self.session.silence
        return silence.error if silence else None

    async def _send(self, request: Request) -> Any:
        if self.error is not None:
            raise self.error
        if self.service is None:
            raise ServiceUnavailableError("connection refused")
        return await self.service.answer(request)


def play(story: Callable[[Shell], Awaitable[None]]) -> None:
    async def main() -> None:
        await story(Shell())

    fake_time.run(main())


def test_an_expectation_is_sent_unless_this_service_has_it() -> None:
    async def story(shell: Shell) -> None:
        first = shell.service
        assert first is not None
        shell.session.start()
        await asyncio.sleep(1)
        for expectation in (ONE, ONE, TWO, TWO, ONE):
            assert await shell.session.expect(expectation)
        assert first.expected == [ONE, TWO, ONE]
        second = shell.service = Service(1, KEY, None, boot=2, pod="x")
        first.close()
        await asyncio.sleep(1)
        assert await shell.session.expect(ONE)
        assert second.expected == [ONE]
        await shell.session.close()

    play(story)


def test_an_expectation_without_an_answer_is_sent_again() -> None:
    async def story(shell: Shell) -> None:
        service, shell.service = shell.service, None
        assert service is not None
        assert not await shell.session.expect(ONE)
        shell.service = service
        assert await shell.session.expect(ONE)
        assert service.expected == [ONE]

    play(story)


def test_every_new_report_calls_back_and_the_same_report_does_not() -> None:
    async def story(shell: Shell) -> None:
        assert shell.service is not None
        shell.session.start()
        await asyncio.sleep(100)
        assert shell.calls == [0.0]
        shell.service.tell(step=1)
        await asyncio.sleep(100)
        assert shell.calls == [0.0, 100.0]
        await shell.session.close()

    play(story)


def test_an_unexpected_error_ends_the_polling_and_close_raises_it() -> None:
    async def story(shell: Shell) -> None:
        def fail() -> None:
            raise ZeroDivisionError

        session = RendezvousSession(ServiceClient(shell._send, KEY.operator), POLLING, fail)
        session.start()
        failed = [session.failed]
        await asyncio.sleep(1)
        assert [*failed, session.failed] == [False, True]
        with pytest.raises(ZeroDivisionError):
            await session.close()

    play(story)


@pytest.mark.parametrize("error", [LookupError("unknown encoding"), AttributeError("no get")])
def test_an_unforeseen_error_of_an_answer_does_not_end_the_polling(error: Exception) -> None:
    async def story(shell: Shell) -> None:
        assert shell.service is not None
        shell.error = error
        shell.session.start()
        await asyncio.sleep(3)  # 15 times, each with its traceback
        assert shell.last_error() == str(error)
        shell.error = None
        await asyncio.sleep(1)
        assert shell.session.report == shell.service.report
        assert shell.last_error() is None
        await shell.session.close()

    play(story)


def test_a_silence_calls_back_at_its_first_failures_and_at_its_end() -> None:
    async def story(shell: Shell) -> None:
        shell.session.start()
        await asyncio.sleep(100)
        shell.error = ServiceUnavailableError("no answer in time")
        assert shell.service is not None
        shell.service.close()
        await asyncio.sleep(100)
        assert shell.last_error() == "no answer in time"
        assert len(shell.calls) == 3
        shell.error, shell.service = None, Service(1, KEY, None, pod="x")
        await asyncio.sleep(1)
        assert shell.last_error() is None
        assert len(shell.calls) == 4
        await shell.session.close()

    play(story)
