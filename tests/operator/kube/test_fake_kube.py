"""What only the API server in memory can do: act as the rest of a cluster, and fail at will."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from ddpjob_operator.kube.interface import ApiError, UnreachableError
from ddpjob_operator.request import Request
from support import fake_time
from support.fake_kube import FakeKube
from support.objects import job, pod

PODS = "/api/v1/namespaces/default/pods"
JOBS = "/apis/ddpjob.io/v1alpha1/namespaces/default/ddpjobs"
QUOTA = ApiError(403, "Forbidden", "exceeded quota: compute")


class CrashError(Exception):
    """The operator dies."""


def run(body: Callable[[FakeKube], Awaitable[None]]) -> None:
    async def main() -> None:
        await body(FakeKube())

    fake_time.run(main())


async def watched(kube: FakeKube, version: str, silence: float = 60) -> list[str]:
    """The events until the watch ends."""
    query = {"resourceVersion": version, "timeoutSeconds": "30", "allowWatchBookmarks": "true"}
    stream = kube.watch(PODS, query=query, silence=silence)
    return [event["type"] async for event in stream]


def version(obj: dict[str, Any]) -> str:
    return str(obj["metadata"]["resourceVersion"])


def owned_by(owner: dict[str, Any], name: str) -> dict[str, Any]:
    metadata = owner["metadata"]
    reference = {"kind": "DDPJob", "name": metadata["name"], "uid": metadata["uid"]}
    return pod(name, ownerReferences=[{**reference, "controller": True}])


# Faults of requests


def test_every_request_is_logged() -> None:
    async def body(kube: FakeKube) -> None:
        made = await kube.send(Request("POST", PODS, body=pod("a")))
        with pytest.raises(ApiError):
            await kube.send(Request("GET", f"{PODS}/b"))
        await watched(kube, version(made))
        assert kube.calls == [("POST", PODS), ("GET", f"{PODS}/b"), ("WATCH", PODS)]

    run(body)


@pytest.mark.parametrize("moment", ["before_request", "after_request"])
def test_a_client_may_crash_before_or_after_a_write(moment: str) -> None:
    async def body(kube: FakeKube) -> None:
        def crash(method: str, path: str) -> None:
            raise CrashError

        setattr(kube, moment, crash)
        with pytest.raises(CrashError):
            await kube.send(Request("POST", PODS, body=pod("a")))
        assert len(kube.pods()) == (moment == "after_request")

    run(body)


def test_some_requests_are_refused_for_some_time() -> None:
    async def body(kube: FakeKube) -> None:
        kube.refuse("POST", "pods", QUOTA, times=2)
        for _ in range(2):
            with pytest.raises(ApiError, match="exceeded quota"):
                await kube.send(Request("POST", PODS, body=pod("a")))
            await kube.send(Request("POST", JOBS, body=job(f"job-{len(kube.calls)}")))
        await kube.send(Request("POST", PODS, body=pod("a")))
        kube.refuse("GET", "pods", QUOTA)
        for _ in range(3):
            with pytest.raises(ApiError, match="exceeded quota"):
                await kube.send(Request("GET", f"{PODS}/a"))
        kube.allow()
        await kube.send(Request("GET", f"{PODS}/a"))

    run(body)


def test_pages_expire() -> None:
    async def body(kube: FakeKube) -> None:
        for name in "abc":
            kube.add(pod(name))
        page = await kube.send(Request("GET", PODS, query={"limit": "2"}))
        kube.compact()
        query = {"limit": "2", "continue": page["metadata"]["continue"]}
        with pytest.raises(ApiError) as error:
            await kube.send(Request("GET", PODS, query=query))
        assert (error.value.status, error.value.reason) == (410, "Expired")

    run(body)


def test_what_was_returned_is_not_what_is_kept() -> None:
    async def body(kube: FakeKube) -> None:
        made = await kube.send(Request("POST", PODS, body=pod("a")))
        made["metadata"]["labels"]["x"] = "y"
        for found in (kube.pods()["a"], await kube.send(Request("GET", f"{PODS}/a"))):
            assert "x" not in found["metadata"]["labels"]

    run(body)


def test_what_is_no_json_is_not_taken() -> None:
    async def body(kube: FakeKube) -> None:
        with pytest.raises(TypeError):
            await kube.send(Request("POST", PODS, body={**pod("a"), "spec": {"x": object()}}))

    run(body)


# Faults of watches


def test_watches_end_and_break() -> None:
    async def body(kube: FakeKube) -> None:
        for error in (None, UnreachableError("broken")):
            made = kube.add(pod(f"a-{bool(error)}".lower()))
            stream = kube.watch(PODS, query={"resourceVersion": version(made)}, silence=60)
            kube.add(pod(f"b-{bool(error)}".lower()))
            assert (await anext(stream))["type"] == "ADDED"
            kube.add(pod(f"c-{bool(error)}".lower()))
            kube.break_watches(error)
            assert (await anext(stream))["type"] == "ADDED", "what came before the end is told"
            with pytest.raises(UnreachableError if error else StopAsyncIteration):
                await anext(stream)

    run(body)


def test_a_held_watch_is_silent() -> None:
    async def body(kube: FakeKube) -> None:
        made = kube.add(pod("a"))
        kube.hold_watches()
        kube.add(pod("b"))
        with pytest.raises(UnreachableError, match="nothing came within 60 s"):
            await watched(kube, version(made))
        kube.release_watches()
        assert await watched(kube, version(made)) == ["ADDED"]

    run(body)


def test_an_event_may_be_lost() -> None:
    async def body(kube: FakeKube) -> None:
        made = kube.add(pod("a"))
        kube.add(pod("b"))
        kube.remove("default", "b")
        kube.lose_event = lambda event: bool(event["type"] == "DELETED")
        assert await watched(kube, version(made)) == ["ADDED", "MODIFIED"]

    run(body)


@pytest.mark.parametrize("as_event", [False, True], ids=["refused", "event"])
def test_what_is_forgotten_is_gone(as_event: bool) -> None:
    async def body(kube: FakeKube) -> None:
        made = kube.add(pod("a"))
        last = kube.add(pod("b"))
        kube.compact()
        kube.gone_as_event = as_event
        if as_event:
            assert await watched(kube, version(made)) == ["ERROR"]
        else:
            with pytest.raises(ApiError) as error:
                await watched(kube, version(made))
            assert error.value.status == 410
        assert await watched(kube, version(last)) == []

    run(body)


def test_bookmarks_tell_how_far_a_watch_is() -> None:
    async def body(kube: FakeKube) -> None:
        made = kube.add(pod("a"))
        query = {"resourceVersion": version(made), "allowWatchBookmarks": "true"}
        stream = kube.watch(PODS, query=query, silence=60)
        other = kube.add(job("other"))
        kube.add(pod("b"))
        assert (await anext(stream))["type"] == "ADDED"
        other = kube.add(job("another"))
        kube.send_bookmarks()
        event = await anext(stream)
        assert event["type"] == "BOOKMARK"
        assert version(event["object"]) == version(other)

    run(body)


# The rest of the cluster


def test_scheduler_and_kubelet() -> None:
    async def body(kube: FakeKube) -> None:
        made = kube.add({**pod("a"), "status": {"reason": "Test"}})
        kube.bind("default", "a", "node-1")
        with pytest.raises(ApiError, match="already assigned"):
            kube.bind("default", "a", "node-2")
        kube.set_pod_status("default", "a", {"phase": "Running", "podIP": "10.0.0.1"})
        found = kube.pods()["a"]
        assert found["spec"]["nodeName"] == "node-1"
        assert found["status"]["phase"] == "Running"
        assert found["status"]["reason"] == "Test"
        assert found["status"]["conditions"] == [{"type": "PodScheduled", "status": "True"}]
        with pytest.raises(AssertionError, match="a is not deleted"):
            kube.finish_deletion("default", "a")
        await kube.send(Request("DELETE", f"{PODS}/a"))
        kube.finish_deletion("default", "a")
        assert kube.pods() == {}
        told = ["MODIFIED"] * 4 + ["DELETED"]
        assert await watched(kube, version(made)) == told

    run(body)


def test_garbage_is_what_has_no_owner_left() -> None:
    async def body(kube: FakeKube) -> None:
        owner, other = kube.add(job("a")), kube.add(job("b"))
        for name, parent in {"a-0": owner, "a-1": owner, "b-0": other}.items():
            kube.add(owned_by(parent, name))
        kube.add(pod("nobodys"))
        kube.bind("default", "a-1", "node-1")
        kube.collect_garbage()
        assert len(kube.pods()) == 4
        await kube.send(Request("DELETE", f"{JOBS}/a"))
        kube.collect_garbage()
        assert sorted(kube.pods()) == ["a-1", "b-0", "nobodys"]
        assert "deletionTimestamp" in kube.pods()["a-1"]["metadata"]
        kube.finish_deletion("default", "a-1")
        kube.collect_garbage()
        assert sorted(kube.pods()) == ["b-0", "nobodys"]

    run(body)


def test_an_owner_deleted_in_the_foreground_goes_last() -> None:
    async def body(kube: FakeKube) -> None:
        owner = kube.add(job("a"))
        kube.add(owned_by(owner, "a-0"))
        kube.bind("default", "a-0", "node-1")
        await kube.send(Request("DELETE", f"{JOBS}/a", body={"propagationPolicy": "Foreground"}))
        for _ in range(2):
            kube.collect_garbage()
            assert "deletionTimestamp" in kube.pods()["a-0"]["metadata"]
            assert "deletionTimestamp" in kube.job("a")["metadata"]
        kube.finish_deletion("default", "a-0")
        kube.collect_garbage()
        with pytest.raises(ApiError, match="not found"):
            kube.job("a")

    run(body)
