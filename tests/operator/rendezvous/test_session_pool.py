"""SessionPool: the services that it follows, and the reports that it passes on."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from ddpjob_operator.rendezvous.client import ServiceUnavailableError, Transport
from ddpjob_operator.rendezvous.session_pool import Key, ServiceId, SessionPool
from ddpjob_operator.request import Request
from ddpjob_protocol.messages.control import Report
from support import fake_time
from support.builders import make_report, make_worker
from support.keys import KEY as JOB_KEY
from support.reconciling.training import Service

KEY = Key("default", "digits")


class Following:
    """A pool of sessions with services that the test has, and whom they told of when."""

    def __init__(self) -> None:
        self.services: dict[str, Service] = {}
        self.requests: list[tuple[str, Mapping[str, str]]] = []
        self.told: list[tuple[Key, Report | None]] = []
        self.name = ""
        self.pool = SessionPool(
            lambda *_: self._way(self.name), lambda key: self.told.append((key, self.report(key)))
        )

    def report(self, key: Key = KEY) -> Report | None:
        session = self.pool.get(key)
        return session.report if session else None

    def awaits(self) -> bool:
        session = self.pool.get(KEY)
        return session is not None and session.awaiting_first_report

    def serve(self, name: str = "first", term: int = 1) -> Service:
        self.services[name] = Service(term, JOB_KEY, None, pod=name)
        return self.services[name]

    def follow(self, name: str = "first", term: int = 1, key: Key = KEY, uid: str = "u") -> None:
        self.name = name
        self.pool.open(key, ServiceId(uid, term, JOB_KEY.operator, "10.0.0.1"))

    def _way(self, name: str) -> Transport:
        async def send(request: Request) -> Any:
            self.requests.append((name, request.query))
            if name not in self.services:
                raise ServiceUnavailableError("connection refused")
            return await self.services[name].answer(request)

        return send


def play(story: Callable[[Following], Awaitable[None]]) -> None:
    async def main() -> None:
        following = Following()
        await story(following)
        await following.pool.close_all()
        assert len(following.pool) == 0

    fake_time.run(main())


def test_the_first_report_and_every_news_is_told_at_once() -> None:
    async def story(it: Following) -> None:
        service = it.serve()
        it.follow()
        assert it.awaits()
        await asyncio.sleep(0.1)
        assert not it.awaits()
        service.tell(reason="two are here")
        await asyncio.sleep(0.1)
        assert [report and report.reason for _, report in it.told] == ["waits", "two are here"]

    play(story)


def test_mere_progress_is_told_with_the_next_poll_and_the_same_again_not_at_all() -> None:
    async def story(it: Following) -> None:
        service = it.serve()
        service.tell(step=0)
        it.follow()
        await asyncio.sleep(0.1)
        for step in range(1, 6):
            service.tell(step=step)
            await asyncio.sleep(1)
        assert len(it.told) == 1
        await asyncio.sleep(10)
        assert [report and report.step for _, report in it.told] == [0, 5]
        await asyncio.sleep(60)
        assert len(it.told) == 2
        assert all(query["news"] == "1" for _, query in it.requests)

    play(story)


def test_a_service_that_does_not_answer_is_told_of_once_and_asked_less_and_less() -> None:
    async def story(it: Following) -> None:
        it.follow()
        await asyncio.sleep(60)
        assert it.told == [(KEY, None)] * 2, "the first request fails; the service is silent"
        assert len(it.requests) < 25
        it.serve()
        await asyncio.sleep(6)
        assert it.report() is not None

    play(story)


def test_a_service_that_begins_anew_is_asked_for_everything() -> None:
    async def story(it: Following) -> None:
        old = it.serve()
        it.follow()
        await asyncio.sleep(0.1)
        for _ in range(5):
            old.tell(reason="busy")
        await asyncio.sleep(0.1)
        old.close()
        new = it.serve()
        await asyncio.sleep(1)
        assert it.report() == new.report
        assert it.requests[-2][1]["after"] == "0"

    play(story)


@pytest.mark.parametrize("changed", [{"term": 2}, {"uid": "another"}], ids=["term", "job"])
def test_another_service_of_a_job_is_followed_instead(changed: dict[str, Any]) -> None:
    async def story(it: Following) -> None:
        it.serve()
        second = it.serve("second", term=2)
        it.follow()
        await asyncio.sleep(0.1)
        it.follow("second", **changed)
        assert it.report() is None
        await asyncio.sleep(0.1)
        it.services["first"].tell(reason="late")
        await asyncio.sleep(0.1)
        assert it.report() == second.report
        assert len(it.pool) == 1
        assert len(it.told) == 2

    play(story)


def test_following_again_changes_nothing() -> None:
    async def story(it: Following) -> None:
        it.serve()
        for _ in range(3):
            it.follow()
            await asyncio.sleep(0.1)
        assert len(it.requests) == 3, "the first one gets the challenge"
        assert len(it.told) == 1

    play(story)


def test_what_is_forgotten_is_asked_no_more() -> None:
    async def story(it: Following) -> None:
        service = it.serve()
        other = Key("elsewhere", "digits")
        it.follow()
        it.follow(key=other)
        await asyncio.sleep(0.1)
        it.pool.close(KEY)
        it.pool.close(KEY)
        assert it.report() is None
        assert it.pool.get(KEY) is None
        assert not it.awaits()
        service.tell(reason="late")
        await asyncio.sleep(0.1)
        assert [key for key, _ in it.told] == [KEY, other, other]

    play(story)


def test_an_answer_that_is_no_report_does_not_end_the_following() -> None:
    async def story(it: Following) -> None:
        service = it.serve()
        good = service.report
        service.report = _Odd()  # type: ignore[assignment]
        it.follow()
        await asyncio.sleep(1)
        assert it.report() is None
        service.report = make_report(make_worker(), version=good.version)
        await asyncio.sleep(6)
        assert it.report() == service.report

    play(story)


@dataclasses.dataclass
class _Odd:
    """What a service of another version might say."""

    version: int = 1
    what: str = "else"
