"""The reflector at an API server that works; test_reflector_faults.py has what happens otherwise."""

from __future__ import annotations

import pytest

from ddpjob_operator.kube.interface import ApiServer
from ddpjob_operator.request import Request
from support.following import following
from support.objects import JOB_LABEL, Api, pod, until


@pytest.fixture
def path(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods"


def test_what_is_there_already_is_listed(api: Api, path: str) -> None:
    async def body(kube: ApiServer) -> None:
        for name, job in {"b": "digits", "a": "digits", "c": "letters"}.items():
            await kube.send(Request("POST", path, body=pod(name, job)))
        await kube.send(Request("POST", path, body=pod("other", labels={})))
        async with following(kube, path) as found:
            await found.reflector.synced.wait()
            assert found.names() == ["a", "b"]
            assert found.names("letters") == ["c"]
            assert found.names("nothing") == []
            assert sorted(found.told) == ["a", "b", "c"]
            assert found.reflector.error is None

    api(body)


def test_an_empty_cluster_is_known_to_be_empty(api: Api, path: str) -> None:
    async def body(kube: ApiServer) -> None:
        async with following(kube, path) as found:
            await found.reflector.synced.wait()
            assert found.names() == []

    api(body)


def test_changes_are_followed(api: Api, path: str) -> None:
    async def body(kube: ApiServer) -> None:
        async with following(kube, path) as found:
            await found.reflector.synced.wait()
            made = await kube.send(Request("POST", path, body=pod("a")))
            await until(lambda: found.names() == ["a"], "a is there")
            made["metadata"]["labels"]["x"] = "y"
            newer = await kube.send(Request("PUT", f"{path}/a", body=made))
            version = newer["metadata"]["resourceVersion"]
            await until(lambda: found.job()[0].version == version, "a has changed")
            await kube.send(Request("DELETE", f"{path}/a"))
            await until(lambda: found.names() == [], "a is gone")
            assert found.seen == {"digits": ()}

    api(body)


def test_a_pod_that_changes_its_job_is_told_to_both(api: Api, path: str) -> None:
    async def body(kube: ApiServer) -> None:
        made = await kube.send(Request("POST", path, body=pod("a")))
        async with following(kube, path) as found:
            await found.reflector.synced.wait()
            made["metadata"]["labels"][JOB_LABEL] = "letters"
            made = await kube.send(Request("PUT", f"{path}/a", body=made))
            await until(lambda: found.names("letters") == ["a"], "a has moved")
            assert found.names() == []
            assert {job: len(things) for job, things in found.seen.items()} == {
                "digits": 0,
                "letters": 1,
            }
            made["metadata"]["labels"] = {}
            await kube.send(Request("PUT", f"{path}/a", body=made))
            await until(lambda: found.names("letters") == [], "a is nobody's")

    api(body)


def test_what_was_created_is_seen_at_once_and_told_once(api: Api, path: str) -> None:
    async def body(kube: ApiServer) -> None:
        async with following(kube, path) as found:
            await found.reflector.synced.wait()
            for name in "abc":
                found.reflector.put(await kube.send(Request("POST", path, body=pod(name))))
                assert name in found.names()
            await kube.send(Request("POST", path, body=pod("d")))
            await until(lambda: "d" in found.names(), "the watch has sent all")
            assert sorted(found.told) == ["a", "b", "c", "d"]

    api(body)


def test_what_was_deleted_is_seen_to_go_and_stays_away(api: Api, path: str) -> None:
    async def body(kube: ApiServer) -> None:
        made = await kube.send(Request("POST", path, body=pod("a")))
        async with following(kube, path) as found:
            await found.reflector.synced.wait()
            gone = await kube.send(Request("DELETE", f"{path}/a"))
            found.reflector.put(gone)
            assert all(thing.deleting for thing in found.job())
            await until(lambda: found.names() == [], "a is gone")
            for late in (made, gone):
                found.reflector.put(late)
                assert found.names() == []

    api(body)


def test_a_successor_of_the_same_name_is_another_pod(api: Api, path: str) -> None:
    async def body(kube: ApiServer) -> None:
        await kube.send(Request("POST", path, body=pod("a")))
        async with following(kube, path) as found:
            await found.reflector.synced.wait()
            await kube.send(Request("DELETE", f"{path}/a"))
            made = await kube.send(Request("POST", path, body=pod("a")))
            found.reflector.put(made)
            await kube.send(Request("POST", path, body=pod("z")))
            await until(lambda: "z" in found.names(), "the watch has sent all")
            assert found.job()[0].uid == made["metadata"]["uid"]
            assert found.names() == ["a", "z"]

    api(body)
