"""The reflector when the API server, the network or an object misbehaves; in fake time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest

from ddpjob_operator.kube import reflector
from ddpjob_operator.kube.interface import ApiError, UnreachableError
from ddpjob_operator.kube.reflector import Reflector
from ddpjob_operator.request import Request
from support import fake_time
from support.fake_kube import FakeKube
from support.following import Following, Thing, following, trim
from support.objects import JOB_LABEL, pod, until

PODS = "/api/v1/namespaces/default/pods"
FORBIDDEN = ApiError(403, "Forbidden", "pods is forbidden")


def run(body: Callable[[FakeKube], Awaitable[None]]) -> None:
    async def main() -> None:
        await body(FakeKube())

    fake_time.run(main())


def truth(kube: FakeKube) -> dict[str, list[tuple[str, str]]]:
    """What is to be seen of each job."""
    found: dict[str, list[tuple[str, str]]] = {}
    for name, each in sorted(kube.pods().items()):
        metadata = each["metadata"]
        if job := metadata.get("labels", {}).get(JOB_LABEL):
            found.setdefault(job, []).append((name, metadata["resourceVersion"]))
    return found


def right(kube: FakeKube, found: Following) -> bool:
    """The store is as the API server, and all of it was told."""
    expected = truth(kube)

    def seen(things: tuple[Thing, ...]) -> list[tuple[str, str]]:
        return [(thing.name, thing.version) for thing in things]

    return all(
        seen(found.job(job)) == expected.get(job, []) == seen(found.seen.get(job, ()))
        for job in {*expected, *found.seen}
    )


def count(kube: FakeKube, method: str) -> int:
    return kube.calls.count((method, PODS))


async def create(kube: FakeKube, name: str, **options: Any) -> dict[str, Any]:
    made: dict[str, Any] = await kube.send(Request("POST", PODS, body=pod(name, **options)))
    return made


async def touch(kube: FakeKube, name: str) -> dict[str, Any]:
    """Change a pod in some way."""
    made = kube.pods()[name]
    annotations = made["metadata"].setdefault("annotations", {})
    annotations["touched"] = str(int(annotations.get("touched", "0")) + 1)
    changed: dict[str, Any] = await kube.send(Request("PUT", f"{PODS}/{name}", body=made))
    return changed


async def delete(kube: FakeKube, name: str) -> None:
    await kube.send(Request("DELETE", f"{PODS}/{name}"))


# Lists


def test_a_long_list_comes_in_pages(caplog: pytest.LogCaptureFixture) -> None:
    async def body(kube: FakeKube) -> None:
        for number in range(1201):
            kube.add(pod(f"p{number:04}"))
        async with following(kube, PODS) as found:
            await found.reflector.synced.wait()
            assert len(found.job()) == 1201
            assert count(kube, "GET") == 3

    run(body)
    assert not caplog.records


def test_a_list_whose_pages_expire_begins_over(caplog: pytest.LogCaptureFixture) -> None:
    async def body(kube: FakeKube) -> None:
        for number in range(1201):
            kube.add(pod(f"p{number:04}"))

        def expire(method: str, path: str) -> None:
            if count(kube, "GET") == 2:
                kube.compact()
                kube.remove("default", "p0000")

        kube.before_request = expire
        async with following(kube, PODS) as found:
            await found.reflector.synced.wait()
            assert right(kube, found)
            assert len(found.job()) == 1200
            assert count(kube, "GET") == 2 + 3
            assert found.reflector.failures == 0

    run(body)
    assert not caplog.records


def test_nothing_is_synced_before_the_last_page() -> None:
    async def body(kube: FakeKube) -> None:
        for number in range(501):
            kube.add(pod(f"p{number:04}"))
        kube.refuse("GET", "pods", ApiError(500, "InternalError", "not now"))
        async with following(kube, PODS) as found:
            await asyncio.sleep(60)
            assert not found.reflector.synced.is_set()
            kube.allow()
            kube.before_request = lambda method, path: (
                None if method != "GET" else check(found, len(kube.calls))
            )
            await found.reflector.synced.wait()
            assert len(found.job()) == 501

    def check(found: Following, calls: int) -> None:
        assert not found.reflector.synced.is_set()

    run(body)


@pytest.mark.parametrize("as_event", [False, True], ids=["refused", "event"])
def test_what_happened_while_the_watch_was_gone_is_found_by_listing(as_event: bool) -> None:
    """With the deletion, that is: nobody will ever tell of it."""

    async def body(kube: FakeKube) -> None:
        kube.gone_as_event = as_event
        for name in "abc":
            await create(kube, name)
        async with following(kube, PODS) as found:
            await asyncio.sleep(5)
            kube.hold_watches()
            await delete(kube, "a")
            await touch(kube, "b")
            await create(kube, "d")
            kube.compact()
            kube.break_watches()
            kube.release_watches()
            found.told.clear()
            kube.lose_event = lambda event: True  # of the broken watch
            await until(lambda: count(kube, "GET") == 2, "it is listed again")
            kube.lose_event = lambda event: False
            await until(lambda: right(kube, found), "all is known")
            assert found.told.count("c") == 0, "nothing happened to it"
            assert sorted(found.told) == ["a", "b", "d"]
            assert found.reflector.failures == 0, "this happens"

    run(body)


def test_a_successor_found_by_listing_takes_the_place_of_its_predecessor() -> None:
    async def body(kube: FakeKube) -> None:
        await create(kube, "a")
        async with following(kube, PODS) as found:
            await found.reflector.synced.wait()
            kube.lose_event = lambda event: True
            await delete(kube, "a")
            made = await create(kube, "a", job="letters")
            kube.compact()
            kube.break_watches(ApiError(410, "Expired", "too old"))
            await until(lambda: found.names("letters") == ["a"], "the new one is there")
            assert found.names() == []
            assert found.job("letters")[0].uid == made["metadata"]["uid"]
            assert right(kube, found)

    run(body)


@pytest.mark.parametrize("change", [create, touch, delete], ids=["ADDED", "MODIFIED", "DELETED"])
def test_a_lost_event_is_made_up_for_in_time(
    change: Callable[[FakeKube, str], Awaitable[Any]],
) -> None:
    async def body(kube: FakeKube) -> None:
        if change is not create:
            await create(kube, "a")
        async with following(kube, PODS, relist_seconds=600) as found:
            await found.reflector.synced.wait()
            kube.lose_event = lambda event: bool(event["object"]["metadata"]["name"] == "a")
            await change(kube, "a")
            await create(kube, "b")
            await asyncio.sleep(100)
            assert "b" in found.names()
            assert not right(kube, found)
            await asyncio.sleep(600 * 1.1 + 60 - 100)
            assert right(kube, found)

    run(body)


# Watches


def test_a_watch_that_ends_is_taken_up_where_it_was() -> None:
    async def body(kube: FakeKube) -> None:
        await create(kube, "a")
        async with following(kube, PODS) as found:
            await found.reflector.synced.wait()
            for name in "bc":
                await create(kube, name)
                await until(lambda name=name: name in found.names(), "it is there")  # type: ignore[misc]
                await asyncio.sleep(5)
                kube.break_watches()
            await create(kube, "d")
            await until(lambda: right(kube, found), "all is known")
            assert sorted(found.told) == ["a", "b", "c", "d"]
            assert count(kube, "GET") == 1
            assert count(kube, "WATCH") == 3
            assert found.reflector.failures == 0

    run(body)


def test_bookmarks_keep_a_quiet_watch_from_falling_behind() -> None:
    async def body(kube: FakeKube) -> None:
        await create(kube, "a")
        async with following(kube, PODS) as found:
            await found.reflector.synced.wait()
            await create(kube, "b", labels={})
            await asyncio.sleep(1)
            kube.send_bookmarks()
            await asyncio.sleep(1)
            kube.compact()
            kube.break_watches()
            await create(kube, "c")
            await until(lambda: right(kube, found), "all is known")
            assert count(kube, "GET") == 1

    run(body)


def test_a_quiet_watch_is_known_to_work() -> None:
    async def body(kube: FakeKube) -> None:
        time = asyncio.get_running_loop().time
        async with following(kube, PODS, relist_seconds=1e9) as found:
            await found.reflector.synced.wait()
            for _ in range(60):
                await asyncio.sleep(60)
                assert time() - found.reflector.last_seen() <= 60
            assert found.reflector.failures == 0
            assert count(kube, "GET") == 1

    run(body)


def test_a_dead_watch_is_noticed_and_opened_again() -> None:
    async def body(kube: FakeKube) -> None:
        time = asyncio.get_running_loop().time
        async with following(kube, PODS) as found:
            await found.reflector.synced.wait()
            kube.hold_watches()
            await create(kube, "a")
            await asyncio.sleep(75)
            assert count(kube, "WATCH") == 2
            assert time() - found.reflector.last_seen() >= 75
            assert found.error() == "nothing came within 70 s"
            kube.release_watches()
            await until(lambda: right(kube, found), "all is known")
            assert found.error() is None
            assert time() - found.reflector.last_seen() < 1
            assert count(kube, "GET") == 1

    run(body)


TROUBLE = [
    (UnreachableError("no route to host"), 1),
    (ApiError(500, "InternalError", "etcd leader changed"), 1),
    (ApiError(429, "TooManyRequests", "slow down", retry_after=7), 1),
    (ApiError(401, "Unauthorized", "who are you"), 2),
    (ApiError(400, "BadRequest", "what is this"), 2),
    (KeyError("metadata"), 2),
]


@pytest.mark.parametrize(("error", "lists"), TROUBLE, ids=[str(error) for error, _ in TROUBLE])
def test_trouble_ends_a_watch_and_is_got_over(error: Exception, lists: int) -> None:
    async def body(kube: FakeKube) -> None:
        await create(kube, "a")
        async with following(kube, PODS) as found:
            await found.reflector.synced.wait()
            await asyncio.sleep(1)
            kube.break_watches(error)
            await create(kube, "b")
            await until(lambda: found.error() is not None, "the error is told")
            await until(lambda: right(kube, found), "all is known")
            await until(lambda: found.error() is None, "the error is over")
            assert found.reflector.failures == 1
            assert count(kube, "GET") == lists
            assert count(kube, "WATCH") == 2

    run(body)


Stream = AsyncIterator[dict[str, Any]]


class TamperedKube(FakeKube):
    """What a watch tells passes through somebody else's hands."""

    def __init__(self) -> None:
        super().__init__()
        self.tamper: Callable[[Stream], Stream] | None = None

    def watch(self, path: str, *, query: Mapping[str, str], silence: float) -> Stream:
        stream = super().watch(path, query=query, silence=silence)
        return self.tamper(stream) if self.tamper else stream


def test_an_error_event_ends_a_watch() -> None:
    async def broken(stream: Stream) -> Stream:
        async for _ in stream:
            status = {"kind": "Status", "code": 500, "reason": "Oops", "message": "it broke"}
            yield {"type": "ERROR", "object": status}

    async def body(kube: FakeKube) -> None:
        tampered = TamperedKube()
        tampered.tamper = broken
        async with following(tampered, PODS) as found:
            await asyncio.sleep(1)
            await create(tampered, "a")
            await until(lambda: found.error() == "it broke (500 Oops)", "the error is told")
            tampered.tamper = None
            await create(tampered, "b")
            await until(lambda: right(tampered, found), "all is known")

    run(body)


def test_an_event_of_an_unknown_kind_is_passed_over() -> None:
    async def strange(stream: Stream) -> Stream:
        async for event in stream:
            yield {**event, "type": "FORGOTTEN"}

    async def body(kube: FakeKube) -> None:
        tampered = TamperedKube()
        tampered.tamper = strange
        async with following(tampered, PODS) as found:
            await asyncio.sleep(1)
            await create(tampered, "a")
            await asyncio.sleep(100)
            assert found.reflector.failures == 0
            assert found.names() == []

    run(body)


def test_a_watch_that_ends_at_once_each_time_is_not_opened_in_a_hurry() -> None:
    async def body(kube: FakeKube) -> None:
        async with following(kube, PODS) as found:
            breaking = asyncio.ensure_future(break_always(kube))
            await asyncio.sleep(600)
            breaking.cancel()
            assert found.error() == "the watch ends as soon as it is opened"
            assert 10 < count(kube, "WATCH") < 60
            await asyncio.sleep(100)
            assert found.error() is None

    async def break_always(kube: FakeKube) -> None:
        while True:
            await asyncio.sleep(0.1)
            kube.break_watches()

    run(body)


def test_a_change_after_an_outage_of_the_api_server_is_soon_known() -> None:
    async def body(kube: FakeKube) -> None:
        async with following(kube, PODS) as found:
            await found.reflector.synced.wait()

            def refuse(method: str, path: str) -> None:
                raise UnreachableError("connection refused")

            kube.before_request = refuse
            kube.break_watches(UnreachableError("connection refused"))
            await asyncio.sleep(600)
            kube.before_request = lambda method, path: None
            await create(kube, "a")
            async with asyncio.timeout(reflector.OUTAGE_PAUSE_SECONDS + 1):
                await until(lambda: right(kube, found), "it is known")

    run(body)


# A server that refuses, and objects that cannot be read


@pytest.mark.parametrize("method", ["GET", "WATCH"])
def test_what_is_forbidden_is_told_and_tried_at_leisure(
    method: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(kube: FakeKube) -> None:
        kube.refuse(method, "pods", FORBIDDEN)
        await create(kube, "a")
        async with following(kube, PODS) as found:
            await asyncio.sleep(600)
            assert found.reflector.synced.is_set() == (method == "WATCH")
            assert found.error() == "pods is forbidden (403 Forbidden)"
            assert 10 < count(kube, method) < 60
            assert count(kube, "GET") < 60
            assert found.reflector.failures == count(kube, method)
            silent = asyncio.get_running_loop().time() - found.reflector.last_seen()
            assert silent == 600 if method == "GET" else silent <= 30
            kube.allow()
            await create(kube, "b")
            await asyncio.sleep(100)
            assert found.reflector.synced.is_set()
            assert found.error() is None
            assert right(kube, found)

    with caplog.at_level(logging.WARNING):
        run(body)
    assert [record.message for record in caplog.records] == [
        f"{PODS}: pods is forbidden (403 Forbidden)"
    ]


def test_after_a_long_absence_there_is_no_more_delay_than_needed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The API server comes back, and tells that it does not know any more what happened."""

    async def body(kube: FakeKube) -> None:
        times: dict[str, float] = {}
        time = asyncio.get_running_loop().time
        async with following(kube, PODS) as found:
            await asyncio.sleep(5)
            kube.refuse("WATCH", "pods", ApiError(503, "ServiceUnavailable", "no"), times=3)
            kube.lose_event = lambda event: True  # the watch is broken before it can tell
            await create(kube, "a")
            await asyncio.sleep(0.1)
            kube.lose_event = lambda event: False
            kube.before_request = lambda method, path: times.update({method: time()})
            kube.break_watches(UnreachableError("no route to host"))
            await create(kube, "b")
            kube.compact()
            await until(lambda: count(kube, "GET") == 2, "it is listed again")
            assert count(kube, "WATCH") in (5, 6)
            assert right(kube, found)
            assert times["WATCH"] == times["GET"]

    run(body)
    assert "410" not in caplog.text


def test_a_server_that_has_always_forgotten_is_not_asked_in_a_hurry() -> None:
    async def body(kube: FakeKube) -> None:
        async with following(kube, PODS) as found:
            await asyncio.sleep(5)
            kube.refuse("WATCH", "pods", ApiError(410, "Expired", "too old"))
            kube.break_watches()
            await asyncio.sleep(600)
            assert count(kube, "GET") < 60
            assert found.error() == "too old (410 Expired)"

    run(body)


def test_a_watch_that_is_refused_again_and_again_makes_the_list_be_asked() -> None:
    """It may be that what it asks for is no more to be had, however that is put."""

    async def body(kube: FakeKube) -> None:
        async with following(kube, PODS) as found:
            await found.reflector.synced.wait()
            kube.refuse("WATCH", "pods", ApiError(500, "InternalError", "no such revision"))
            kube.break_watches()
            await create(kube, "a")
            await until(lambda: right(kube, found), "all is known")
            assert 3 <= count(kube, "WATCH") <= 6

    run(body)


def test_after_trouble_pauses_are_short_again() -> None:
    async def body(kube: FakeKube) -> None:
        time = asyncio.get_running_loop().time
        async with following(kube, PODS) as found:
            await found.reflector.synced.wait()
            kube.refuse("WATCH", "pods", ApiError(500, "InternalError", "no"))
            kube.break_watches()
            await asyncio.sleep(600)
            kube.allow()
            await until(lambda: found.error() is None, "it works again")
            await asyncio.sleep(60)
            began = time()
            kube.break_watches(UnreachableError("no route to host"))
            await create(kube, "a")
            await until(lambda: right(kube, found), "all is known")
            assert time() - began <= 1.1

    run(body)


def test_an_error_that_comes_back_is_logged_again(caplog: pytest.LogCaptureFixture) -> None:
    async def body(kube: FakeKube) -> None:
        async with following(kube, PODS) as found:
            await found.reflector.synced.wait()
            for _ in range(2):
                kube.break_watches(UnreachableError("no route to host"))
                await asyncio.sleep(100)
                assert found.error() is None

    with caplog.at_level(logging.INFO):
        run(body)
    lost, back = f"{PODS}: no route to host", f"{PODS}: watch resumed"
    assert [record.message for record in caplog.records] == [lost, back, lost, back]


def test_a_server_that_asks_for_time_gets_it() -> None:
    async def body(kube: FakeKube) -> None:
        busy = ApiError(429, "TooManyRequests", "slow down", retry_after=20)
        kube.refuse("GET", "pods", busy, times=1)
        async with following(kube, PODS) as found:
            await found.reflector.synced.wait()
            assert asyncio.get_running_loop().time() == 20

    run(body)


def test_an_object_that_cannot_be_read_does_not_keep_the_others_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def body(kube: FakeKube) -> None:
        await create(kube, "bad")
        await create(kube, "good")

        def picky(obj: dict[str, Any]) -> Thing:
            if obj["metadata"]["name"] == "bad":
                raise ValueError("this one is strange")
            return trim(obj)

        told: list[str] = []
        picks = Reflector(kube, PODS, JOB_LABEL, picky, lambda thing: told.append(thing.name))
        task = asyncio.ensure_future(picks.run())
        await picks.synced.wait()
        await touch(kube, "bad")
        await create(kube, "better")
        await delete(kube, "bad")
        await delete(kube, "good")
        await until(lambda: told == ["good", "better", "good", "good"], "the others are told")
        picks.put({"metadata": {"name": "bad"}})
        assert picks.failures == 4
        assert [thing.name for thing in picks.by_job("default", "digits")] == ["better"]
        task.cancel()
        await asyncio.wait([task])

    run(body)
    assert [record.message for record in caplog.records] == [
        f"{PODS}: cannot read bad: ValueError('this one is strange')"
    ]


def test_who_is_told_may_fail() -> None:
    async def body(kube: FakeKube) -> None:
        def fail(thing: Thing) -> None:
            raise RuntimeError("no")

        mute = Reflector(kube, PODS, JOB_LABEL, trim, fail)
        task = asyncio.ensure_future(mute.run())
        await mute.synced.wait()
        for name in "abc":
            await create(kube, name)
        await until(lambda: len(mute.by_job("default", "digits")) == 3, "all are there")
        assert mute.failures == 3
        assert not task.done()
        task.cancel()
        await asyncio.wait([task])

    run(body)


# What our own requests returned


def test_a_late_watch_tells_nothing_twice_and_turns_nothing_back() -> None:
    async def body(kube: FakeKube) -> None:
        async with following(kube, PODS) as found:
            await found.reflector.synced.wait()
            kube.hold_watches()
            created = await create(kube, "a")
            changed = await touch(kube, "a")
            found.reflector.put(changed)
            found.reflector.put(created)
            version = changed["metadata"]["resourceVersion"]
            assert [thing.version for thing in found.job()] == [version]
            kube.release_watches()
            await create(kube, "b")
            await until(lambda: right(kube, found), "all is known")
            assert found.told == ["a", "b"]

    run(body)


def test_a_deleted_object_is_not_brought_back_by_an_answer_that_came_late() -> None:
    async def body(kube: FakeKube) -> None:
        async with following(kube, PODS) as found:
            await found.reflector.synced.wait()
            created = await create(kube, "a")
            await delete(kube, "a")
            await create(kube, "b")
            await until(lambda: found.names() == ["b"], "the watch has told of all")
            found.reflector.put(created)
            assert found.names() == ["b"]

    run(body)


def test_the_watchs_end_of_a_predecessor_does_not_end_its_successor() -> None:
    async def body(kube: FakeKube) -> None:
        await create(kube, "a")
        async with following(kube, PODS) as found:
            await found.reflector.synced.wait()
            kube.hold_watches()
            await delete(kube, "a")
            made = await create(kube, "a")
            found.reflector.put(made)
            kube.release_watches()
            await create(kube, "b")
            await until(lambda: found.names() == ["a", "b"], "the watch has told of all")
            assert found.job()[0].uid == made["metadata"]["uid"]
            assert right(kube, found)
            assert found.told == ["a", "a", "b"], "it was there all the time"

    run(body)


@pytest.mark.parametrize("deleted", [False, True], ids=["still there", "gone since"])
def test_what_was_created_while_a_list_was_under_way(deleted: bool) -> None:
    """The list is of a moment before, or after, and does not tell which."""

    async def body(kube: FakeKube) -> None:
        for number in range(501):
            kube.add(pod(f"p{number:04}"))
        async with following(kube, PODS) as found:
            await found.reflector.synced.wait()
            made: list[dict[str, Any]] = []
            if deleted:
                made.append(kube.add(pod("new")))
                kube.remove("default", "new")

            def create_between_pages(method: str, path: str) -> None:
                if method == "GET" and not found.reflector.by_job("default", "letters"):
                    if not made:
                        made.append(kube.add(pod("new")))
                    found.reflector.put(made[0])

            kube.after_request = create_between_pages
            kube.lose_event = lambda event: True
            kube.compact()
            kube.break_watches(ApiError(410, "Expired", "too old"))
            await until(lambda: count(kube, "GET") == 4, "it was listed again")
            kube.after_request = lambda method, path: None
            await asyncio.sleep(1)
            assert ("new" in found.names()) is not deleted
            assert right(kube, found)

    run(body)


def test_a_newer_version_put_while_a_list_was_under_way_is_kept() -> None:
    async def body(kube: FakeKube) -> None:
        for number in range(501):
            kube.add(pod(f"p{number:04}"))
        async with following(kube, PODS) as found:

            def touch_between_pages(method: str, path: str) -> None:
                if count(kube, "GET") == 1:
                    kube.set_pod_status("default", "p0500", {"phase": "Running"})
                    found.reflector.put(kube.pods()["p0500"])

            kube.after_request = touch_between_pages
            await found.reflector.synced.wait()
            assert right(kube, found)
            assert found.told.count("p0500") == 1

    run(body)


def test_a_status_is_no_object() -> None:
    async def body(kube: FakeKube) -> None:
        async with following(kube, PODS) as found:
            found.reflector.put({"kind": "Status", "status": "Success", "metadata": {}})
            assert found.reflector.failures == 0

    run(body)


def test_a_cluster_restored_from_a_backup_is_believed() -> None:
    """Its revisions begin again lower than what was seen."""

    async def body(kube: FakeKube) -> None:
        backup = FakeKube()
        for each in (pod("a", job="letters"), pod("b")):
            backup.add(each)
        for number in range(50):
            await create(kube, f"later-{number}")
        await create(kube, "a")
        async with following(kube, PODS, relist_seconds=600) as found:
            await found.reflector.synced.wait()
            found.reflector.put(await create(kube, "ghost"))
            kube.objects = backup.objects
            kube.break_watches(ApiError(410, "Expired", "no such revision"))
            await until(lambda: right(kube, found), "all is known")
            assert (found.names(), found.names("letters")) == (["b"], ["a"])
            await create(kube, "c")
            await until(lambda: found.names() == ["b", "c"], "the watch goes on")

    run(body)


# All together

NAMES = st.sampled_from("abcd")
STEPS = st.one_of(
    st.tuples(st.sampled_from(["create", "touch", "delete", "bind", "finish", "move"]), NAMES),
    st.tuples(
        st.sampled_from(
            ["break", "fail", "compact", "hold", "release", "refuse", "allow", "bookmark", "wait"]
        ),
        st.just(""),
    ),
)


async def act(kube: FakeKube, step: str, name: str) -> dict[str, Any] | None:
    """Do it to a pod, if that makes sense; what the API server answered."""
    there = kube.pods().get(name)
    answer: dict[str, Any] | None = None
    match step:
        case "create" if there is None:
            answer = await create(kube, name)
        case "touch" if there:
            answer = await touch(kube, name)
        case "move" if there:
            there["metadata"]["labels"][JOB_LABEL] = "letters"
            answer = await kube.send(Request("PUT", f"{PODS}/{name}", body=there))
        case "delete" if there:
            answer = await kube.send(Request("DELETE", f"{PODS}/{name}"))
        case "bind" if there and "nodeName" not in there["spec"]:
            kube.bind("default", name, "node-1")
        case "finish" if there and "deletionTimestamp" in there["metadata"]:
            kube.finish_deletion("default", name)
    return answer


def refuse_all(kube: FakeKube) -> None:
    kube.refuse("GET", "pods", ApiError(500, "InternalError", "no"))
    kube.refuse("WATCH", "pods", ApiError(503, "ServiceUnavailable", "no"))


FAULTS: dict[str, Callable[[FakeKube], None]] = {
    "break": FakeKube.break_watches,
    "fail": lambda kube: kube.break_watches(UnreachableError("broken")),
    "compact": FakeKube.compact,
    "hold": FakeKube.hold_watches,
    "release": FakeKube.release_watches,
    "refuse": refuse_all,
    "allow": FakeKube.allow,
    "bookmark": FakeKube.send_bookmarks,
}


@hypothesis.settings(max_examples=300)
@hypothesis.given(st.lists(STEPS, max_size=40), st.booleans(), st.booleans())
def test_whatever_happens_the_store_is_right_in_the_end(
    steps: list[tuple[str, str]], put: bool, gone_as_event: bool
) -> None:
    """Own answers are put, or not; the watch breaks, stops, forgets; the server refuses."""

    async def body(kube: FakeKube) -> None:
        kube.gone_as_event = gone_as_event
        async with following(kube, PODS, relist_seconds=1e9) as found:
            for step, name in steps:
                if step in FAULTS:
                    FAULTS[step](kube)
                elif step == "wait":
                    await asyncio.sleep(20)
                elif (answer := await act(kube, step, name)) and put:
                    found.reflector.put(answer)
            kube.allow()
            kube.release_watches()
            await asyncio.sleep(200)
            assert found.reflector.synced.is_set()
            assert right(kube, found), (truth(kube), found.seen)
            assert found.error() is None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reflector, "PAGE", "2")  # so that a list takes time
        run(body)
