"""Which operator leads, in fake time: never two, and soon another one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest

from ddpjob_operator.controller.leases import election
from ddpjob_operator.controller.leases.leadership import Leadership, LeaseLostError, LeaseName
from ddpjob_operator.kube.interface import ApiError, UnreachableError
from ddpjob_operator.request import Request
from support import fake_time
from support.fake_kube import FakeKube

LEASE = LeaseName("ddpjob-system", "operator")
AWAY = UnreachableError("connection refused")


def play(story: Callable[[FakeKube], Awaitable[None]]) -> None:
    async def main() -> None:
        await story(FakeKube())

    fake_time.run(main())


def candidate(kube: FakeKube, name: str) -> Leadership:
    return Leadership(kube, LEASE, name, asyncio.get_running_loop().time)


async def lead(one: Leadership) -> None:
    await one.acquire()
    await one.keep()


async def holder(kube: FakeKube) -> str:
    lease = await kube.send(Request("GET", LEASE.path))
    return str(lease["spec"]["holderIdentity"])


def test_a_standby_leads_after_the_lease_and_never_beside_the_leader() -> None:
    async def story(kube: FakeKube) -> None:
        first, second = candidate(kube, "first"), candidate(kube, "second")
        tasks = [asyncio.ensure_future(lead(first))]
        await asyncio.sleep(1)
        tasks.append(asyncio.ensure_future(lead(second)))
        await asyncio.sleep(100)
        assert (first.is_sure(), second.is_sure()) == (True, False)
        assert second.role() == "standby: first leads by the Lease ddpjob-system/operator"
        tasks[0].cancel()
        for _ in range(300):
            assert not (first.is_sure() and second.is_sure())
            await asyncio.sleep(0.1)
        assert first.is_lost()
        assert second.role() == "leader"
        assert await holder(kube) == "second"
        for task in tasks:
            task.cancel()

    play(story)


def test_a_released_lease_is_taken_at_once() -> None:
    async def story(kube: FakeKube) -> None:
        first, second = candidate(kube, "first"), candidate(kube, "second")
        await first.acquire()
        waiting = asyncio.ensure_future(second.acquire())
        await asyncio.sleep(1)
        await first.release()
        assert not first.is_sure()
        async with asyncio.timeout(election.RENEW_SECONDS):
            await waiting
        assert second.is_sure()

    play(story)


def test_a_leader_that_reaches_no_api_server_is_unsure_and_ends() -> None:
    async def story(kube: FakeKube) -> None:
        one = candidate(kube, "first")
        await one.acquire()
        began = asyncio.get_running_loop().time()

        def refuse(method: str, path: str) -> None:
            raise AWAY

        kube.before_request = refuse
        with pytest.raises(LeaseLostError, match="is lost: connection refused"):
            await one.keep()
        assert not one.is_sure()
        assert asyncio.get_running_loop().time() - began >= election.SURE_SECONDS

    play(story)


def test_a_leader_whose_lease_another_one_took_ends_at_once() -> None:
    async def story(kube: FakeKube) -> None:
        one = candidate(kube, "first")
        await one.acquire()
        lease = await kube.send(Request("GET", LEASE.path))
        lease["spec"]["holderIdentity"] = "thief"
        await kube.send(Request("PUT", LEASE.path, body=lease))
        async with asyncio.timeout(election.RENEW_SECONDS + 1):
            with pytest.raises(LeaseLostError, match="thief holds it"):
                await one.keep()

    play(story)


@pytest.mark.parametrize("lost", ["POST", "PUT"])
def test_an_answer_that_is_lost_costs_no_lease(lost: str) -> None:
    async def story(kube: FakeKube) -> None:
        answers_lost = 0

        def lose(method: str, path: str) -> None:
            nonlocal answers_lost
            if method == lost and not answers_lost:
                answers_lost += 1
                raise AWAY

        kube.after_request = lose
        one = candidate(kube, "first")
        task = asyncio.ensure_future(lead(one))
        await asyncio.sleep(60)
        assert answers_lost == 1
        assert one.is_sure()
        assert not task.done()
        task.cancel()

    play(story)


def test_a_standby_that_sees_no_lease_says_why() -> None:
    async def story(kube: FakeKube) -> None:
        kube.refuse("GET", "leases", ApiError(403, "Forbidden", "leases is forbidden"))
        one = candidate(kube, "first")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(30):
                await one.acquire()
        assert one.obstacle == "leases is forbidden (403 Forbidden)"
        kube.allow()
        await one.acquire()
        assert one.obstacle == ""

    play(story)
