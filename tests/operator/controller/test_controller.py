"""When an operator calls itself healthy and ready, in fake time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from ddpjob_operator.controller.controller import Controller
from ddpjob_operator.controller.keys.job_keys import JobKeys
from ddpjob_operator.controller.settings import Settings
from ddpjob_operator.kube.interface import ApiError, UnreachableError
from ddpjob_operator.request import Request
from support import fake_time
from support.fake_kube import FakeKube
from support.keys import OPERATOR_KEY
from support.objects import job
from support.reconciling.stage import JOBS
from support.reconciling.wire import Call, Wire

FORBIDDEN = ApiError(403, "Forbidden", "pods is forbidden: the account may not list pods")

ENDED = {
    "state": "Complete",
    "conditions": [{"type": "Complete", "status": "True", "reason": "Completed"}],
}


@contextlib.asynccontextmanager
async def running(wire: Wire, **settings: Any) -> AsyncIterator[Controller]:
    clock = asyncio.get_running_loop().time
    controller = Controller(
        wire, Settings(agent_image="x", **settings), JobKeys(OPERATOR_KEY), clock=clock
    )
    task = asyncio.ensure_future(controller.run())
    try:
        yield controller
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def play(story: Callable[[FakeKube, Wire], Awaitable[None]]) -> None:
    async def main() -> None:
        kube = FakeKube()
        await story(kube, Wire(kube))

    fake_time.run(main())


def test_it_is_ready_once_all_is_listed_and_stays_healthy_when_nothing_happens() -> None:
    async def story(kube: FakeKube, wire: Wire) -> None:
        async with running(wire) as controller:
            assert controller.not_ready_reasons() == [
                "/api/v1/pods: not listed yet",
                "/api/v1/services: not listed yet",
            ]
            assert controller.problems() == []
            for _ in range(20):
                await asyncio.sleep(60)
                assert controller.not_ready_reasons() == controller.problems() == []

    play(story)


def test_who_may_not_list_is_not_ready_and_says_why_but_need_not_be_restarted() -> None:
    async def story(kube: FakeKube, wire: Wire) -> None:
        kube.refuse("GET", "pods", FORBIDDEN)
        async with running(wire) as controller:
            await asyncio.sleep(300)
            [obstacle] = controller.not_ready_reasons()
            assert "/api/v1/pods: pods is forbidden" in obstacle
            assert controller.problems() == []
            kube.allow()
            await asyncio.sleep(60)
            assert controller.not_ready_reasons() == []

    play(story)


def test_a_pass_that_hangs_makes_it_unhealthy_until_it_ends() -> None:
    async def story(kube: FakeKube, wire: Wire) -> None:
        goes_on = asyncio.Event()

        async def hang(call: Call) -> None:
            if call.kind == "GET ddpjobs" and call.path.endswith("digits"):
                await goes_on.wait()

        wire.before = hang
        async with running(wire) as controller:
            await kube.send(Request("POST", JOBS.format("default"), body=job("digits")))
            controller.changed("default", "digits")
            await asyncio.sleep(100)
            assert controller.problems() == []
            await asyncio.sleep(30)
            [problem] = controller.problems()
            assert problem == "a job has been waiting, or worked on, for 130 s"
            assert problem in controller.not_ready_reasons()
            goes_on.set()
            await asyncio.sleep(1)
            assert controller.problems() == []

    play(story)


def test_one_job_that_hangs_keeps_no_other_one_waiting() -> None:
    async def story(kube: FakeKube, wire: Wire) -> None:
        async def hang(call: Call) -> None:
            if call.path.endswith("ddpjobs/slow"):
                await asyncio.get_running_loop().create_future()

        wire.before = hang
        async with running(wire, workers=2) as controller:
            for name in ("slow", "digits"):
                await kube.send(Request("POST", JOBS.format("default"), body=job(name)))
                controller.changed("default", name)
            await asyncio.sleep(10)
            assert kube.job("digits")["status"]["rendezvousTerm"] == 1
            assert "status" not in kube.job("slow")

    play(story)


def test_a_watch_that_is_dead_and_does_not_know_it_makes_it_unhealthy() -> None:
    async def story(kube: FakeKube, wire: Wire) -> None:
        async with running(wire) as controller:
            await asyncio.sleep(1)
            wire.dead.set()  # no answer comes, and no connection ends
            await asyncio.sleep(200)
            found = " ".join(controller.problems())
            assert "the watch of /api/v1/pods has been silent for 2" in found
            assert "the watch of /api/v1/services has been silent for 2" in found

    play(story)


def test_an_api_server_that_is_away_makes_it_unready_but_not_unhealthy() -> None:
    async def story(kube: FakeKube, wire: Wire) -> None:
        async with running(wire) as controller:
            await asyncio.sleep(1)
            away = UnreachableError("connection refused")

            def refuse(method: str, path: str) -> None:
                raise away

            kube.before_request = refuse
            kube.break_watches(away)
            await asyncio.sleep(600)
            assert len(controller.not_ready_reasons()) == 2
            assert "connection refused" in controller.not_ready_reasons()[0]
            assert controller.problems() == []
            kube.before_request = lambda method, path: None
            await asyncio.sleep(120)
            assert controller.not_ready_reasons() == []

    play(story)


def test_a_standby_is_ready_plans_nothing_and_leads_with_all_jobs() -> None:
    async def story(kube: FakeKube, wire: Wire) -> None:
        clock = asyncio.get_running_loop().time
        settings = Settings(agent_image="x")
        controller = Controller(wire, settings, JobKeys(OPERATOR_KEY), clock=clock, leads=False)
        task = asyncio.ensure_future(controller.run())
        await kube.send(Request("POST", JOBS.format("default"), body=job("digits")))
        controller.changed("default", "digits")
        await asyncio.sleep(600)
        assert controller.not_ready_reasons() == []
        assert "status" not in kube.job("digits")
        controller.lead()
        await asyncio.sleep(5)
        assert kube.job("digits")["status"]["rendezvousTerm"] == 1
        task.cancel()

    play(story)


def test_a_stopping_operator_ends_its_passes_and_begins_none() -> None:
    async def story(kube: FakeKube, wire: Wire) -> None:
        goes_on = asyncio.Event()

        async def hang(call: Call) -> None:
            if call.path.endswith("ddpjobs/slow"):
                await goes_on.wait()

        wire.before = hang
        async with running(wire) as controller:
            await kube.send(Request("POST", JOBS.format("default"), body=job("slow")))
            controller.changed("default", "slow")
            await asyncio.sleep(1)
            assert not await controller.stop_planning(10)
            await kube.send(Request("POST", JOBS.format("default"), body=job("digits")))
            controller.changed("default", "digits")
            asyncio.get_running_loop().call_later(5, goes_on.set)
            assert await controller.stop_planning(10)
            await asyncio.sleep(600)
            assert "status" in kube.job("slow")
            assert "status" not in kube.job("digits")

    play(story)


def test_a_slow_pass_whose_requests_are_answered_is_healthy() -> None:
    async def story(kube: FakeKube, wire: Wire) -> None:
        async def slow(call: Call) -> None:
            if call.kind == "POST pods":
                await asyncio.sleep(25)

        wire.before = slow
        async with running(wire, workers=1) as controller:
            big = {**job("digits")["spec"], "replicas": 100, "maxReplicas": 100}
            body = {**job("digits"), "spec": big}
            await kube.send(Request("POST", JOBS.format("default"), body=body))
            controller.changed("default", "digits")
            await asyncio.sleep(5)
            await kube.send(Request("POST", JOBS.format("default"), body=job("next")))
            controller.changed("default", "next")
            for _ in range(60):
                await asyncio.sleep(10)
                assert controller.problems() == []
            assert len(kube.pods()) > 100

    play(story)


def test_jobs_that_have_ended_are_not_read_again_and_again() -> None:
    async def story(kube: FakeKube, wire: Wire) -> None:
        kube.add({**job("ended"), "status": ENDED})
        await kube.send(Request("POST", JOBS.format("default"), body=job("digits")))
        async with running(wire):
            await asyncio.sleep(3600)
        reads = [call.path.rpartition("/")[2] for call in wire.calls if call.kind == "GET ddpjobs"]
        assert reads.count("ended") <= 2
        assert reads.count("digits") > 10

    play(story)
