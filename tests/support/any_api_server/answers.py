"""The behaviour of an API server that the operator needs; the one in memory is like the real one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

from ddpjob_operator.kube.interface import ApiError, ApiServer
from ddpjob_operator.request import Request
from support.objects import JOB_LABEL, Api, job, pod

JSON = dict[str, Any]


class Paths:
    """The paths of one namespace."""

    def __init__(self, namespace: str) -> None:
        base = f"/namespaces/{namespace}"
        self.pods = f"/api/v1{base}/pods"
        self.services = f"/api/v1{base}/services"
        self.events = f"/api/v1{base}/events"
        self.jobs = f"/apis/ddpjob.io/v1alpha1{base}/ddpjobs"


@pytest.fixture
def at(namespace: str) -> Paths:
    return Paths(namespace)


async def bound(kube: ApiServer, path: str, name: str, node: str = "node-1") -> JSON:
    """A pod that has a node, which the server's cache knows, too: a deletion begins from there."""
    await kube.send(Request("POST", path, body=pod(name)))
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}}
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    await kube.send(Request("POST", f"{path}/{name}/binding", body={**binding, "target": target}))
    found: JSON = await kube.send(Request("GET", f"{path}/{name}"))
    since = {"resourceVersion": found["metadata"]["resourceVersion"]}
    await kube.send(Request("GET", f"{path}/{name}", query=since))
    return found


async def events(kube: ApiServer, path: str, count: int, **query: str) -> list[JSON]:
    """The first events of a watch."""
    found: list[JSON] = []
    watch = kube.watch(path, query=query, silence=60)
    assert isinstance(watch, AsyncGenerator)
    async for event in watch:
        found.append(event)
        if len(found) == count:
            break
    await watch.aclose()
    return found


def told(found: list[JSON]) -> list[tuple[str, str]]:
    return [(event["type"], event["object"]["metadata"]["name"]) for event in found]


def names(page: JSON) -> list[str]:
    return [item["metadata"]["name"] for item in page["items"]]


# Creation


def test_an_object_gets_what_only_the_server_gives(api: Api, at: Paths) -> None:
    async def body(kube: ApiServer) -> None:
        made = await kube.send(
            Request("POST", at.jobs, body={**job("a"), "status": {"state": "Mine"}})
        )
        metadata = made["metadata"]
        assert {"uid", "creationTimestamp", "resourceVersion", "namespace"} <= metadata.keys()
        assert metadata["generation"] == 1
        assert "state" not in made.get("status", {})
        assert await kube.send(Request("GET", f"{at.jobs}/a")) == made

    api(body)


def test_a_pod_begins_pending_and_without_a_node(api: Api, at: Paths) -> None:
    async def body(kube: ApiServer) -> None:
        made = await kube.send(
            Request("POST", at.pods, body={**pod("a"), "status": {"phase": "Failed"}})
        )
        assert made["status"]["phase"] == "Pending"
        assert "nodeName" not in made["spec"]

    api(body)


def test_names_are_made_from_a_prefix(api: Api, at: Paths) -> None:
    async def body(kube: ApiServer) -> None:
        event: JSON = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": "digits-"},
            "involvedObject": {
                "kind": "DDPJob",
                "name": "digits",
                "namespace": at.pods.split("/")[4],
            },
        }
        made = [await kube.send(Request("POST", at.events, body=event)) for _ in range(2)]
        found = {each["metadata"]["name"] for each in made}
        assert len(found) == 2
        assert all(name.startswith("digits-") for name in found)

    api(body)


def test_a_dry_run_leaves_nothing(api: Api, at: Paths) -> None:
    async def body(kube: ApiServer) -> None:
        made = await kube.send(Request("POST", at.pods, query={"dryRun": "All"}, body=pod("a")))
        assert made["metadata"]["uid"]
        with pytest.raises(ApiError) as error:
            await kube.send(Request("GET", f"{at.pods}/a"))
        assert error.value.status == 404

    api(body)


def without_name() -> JSON:
    return {**pod(""), "metadata": {}}


def with_wrong_kind() -> JSON:
    return {**pod("a"), "kind": "Service"}


def with_wrong_namespace() -> JSON:
    return pod("a", namespace="elsewhere")


@pytest.mark.parametrize(
    ("make", "status", "reason"),
    [
        (without_name, 422, "Invalid"),
        (lambda: pod("No_Name"), 422, "Invalid"),
        (with_wrong_kind, 400, "BadRequest"),
        (with_wrong_namespace, 400, "BadRequest"),
    ],
    ids=["no name", "no valid name", "another kind", "another namespace"],
)
def test_creation_is_refused(
    api: Api, at: Paths, make: Callable[[], JSON], status: int, reason: str
) -> None:
    async def body(kube: ApiServer) -> None:
        with pytest.raises(ApiError) as error:
            await kube.send(Request("POST", at.pods, body=make()))
        assert (error.value.status, error.value.reason) == (status, reason)

    api(body)


def test_a_name_exists_once(api: Api, at: Paths) -> None:
    async def body(kube: ApiServer) -> None:
        await kube.send(Request("POST", at.pods, body=pod("a")))
        with pytest.raises(ApiError, match='pods "a" already exists') as error:
            await kube.send(Request("POST", at.pods, body=pod("a")))
        assert (error.value.status, error.value.reason) == (409, "AlreadyExists")

    api(body)


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_what_is_not_there_is_not_found(api: Api, at: Paths, method: str) -> None:
    async def body(kube: ApiServer) -> None:
        sent = None
        if method == "PUT":
            sent = job("a", resourceVersion="1")
        with pytest.raises(ApiError) as error:
            await kube.send(Request(method, f"{at.jobs}/a", body=sent))
        assert (error.value.status, error.value.reason) == (404, "NotFound")

    api(body)


def test_an_unknown_kind_is_not_found(api: Api, at: Paths) -> None:
    async def body(kube: ApiServer) -> None:
        with pytest.raises(ApiError, match="404 page not found") as error:
            await kube.send(Request("GET", "/apis/ddpjob.io/v1alpha1/pdpjobs"))
        assert error.value.status == 404

    api(body)


# Lists


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("", ["a", "b", "c"]),
        (f"{JOB_LABEL}=x", ["a"]),
        (f"{JOB_LABEL}==x", ["a"]),
        (f"{JOB_LABEL}!=x", ["b", "c"]),
        (JOB_LABEL, ["a", "b"]),
        (f"!{JOB_LABEL}", ["c"]),
        (f"{JOB_LABEL},{JOB_LABEL}!=y", ["a"]),
    ],
)
def test_a_list_takes_a_label_selector(
    api: Api, at: Paths, selector: str, expected: list[str]
) -> None:
    async def body(kube: ApiServer) -> None:
        for name, labels in {"a": {JOB_LABEL: "x"}, "b": {JOB_LABEL: "y"}, "c": {}}.items():
            await kube.send(Request("POST", at.pods, body=pod(name, labels=labels)))
        assert (
            names(await kube.send(Request("GET", at.pods, query={"labelSelector": selector})))
            == expected
        )

    api(body)


def test_pages_of_a_list_are_of_one_moment(api: Api, at: Paths) -> None:
    async def body(kube: ApiServer) -> None:
        for name in "abcde":
            await kube.send(Request("POST", at.pods, body=pod(name)))
        first = await kube.send(Request("GET", at.pods, query={"limit": "2"}))
        await kube.send(Request("POST", at.pods, body=pod("bb")))
        await kube.send(Request("DELETE", f"{at.pods}/e"))
        pages, query = [first], {"limit": "2"}
        while token := pages[-1]["metadata"].get("continue"):
            pages.append(
                await kube.send(Request("GET", at.pods, query={**query, "continue": token}))
            )
        assert [names(page) for page in pages] == [["a", "b"], ["c", "d"], ["e"]]
        assert len({page["metadata"]["resourceVersion"] for page in pages}) == 1

    api(body)


def test_a_namespace_sees_only_its_own(api: Api, at: Paths, namespace: str) -> None:
    async def body(kube: ApiServer) -> None:
        await kube.send(Request("POST", at.pods, body=pod("a")))
        everywhere = await kube.send(Request("GET", "/api/v1/pods"))
        assert namespace in [each["metadata"]["namespace"] for each in everywhere["items"]]
        with pytest.raises(ApiError):
            await kube.send(Request("GET", "/api/v1/namespaces/elsewhere/pods/a"))
        elsewhere = await kube.send(Request("GET", "/api/v1/namespaces/elsewhere/pods"))
        assert elsewhere["items"] == []

    api(body)


def test_builtin_kinds_are_listed_without_their_kind(api: Api, at: Paths) -> None:
    async def body(kube: ApiServer) -> None:
        await kube.send(Request("POST", at.pods, body=pod("a")))
        await kube.send(Request("POST", at.jobs, body=job("a")))
        [listed] = (await kube.send(Request("GET", at.pods)))["items"]
        assert "kind" not in listed
        [listed] = (await kube.send(Request("GET", at.jobs)))["items"]
        assert listed["kind"] == "DDPJob"

    api(body)


# Updates


def test_generations_count_changes_of_the_spec(api: Api, at: Paths) -> None:
    async def body(kube: ApiServer) -> None:
        made = await kube.send(Request("POST", at.jobs, body=job("a")))
        made["metadata"]["annotations"] = {"x": "y"}
        made["status"] = {"state": "Ignored"}
        labelled = await kube.send(Request("PUT", f"{at.jobs}/a", body=made))
        assert labelled["metadata"]["generation"] == 1
        assert "state" not in labelled.get("status", {})
        labelled["spec"]["replicas"] = 3
        resized = await kube.send(Request("PUT", f"{at.jobs}/a", body=labelled))
        assert resized["metadata"]["generation"] == 2
        assert resized["metadata"]["uid"] == made["metadata"]["uid"]
        versions = [each["metadata"]["resourceVersion"] for each in (made, labelled, resized)]
        assert versions == sorted(set(versions), key=int)

    api(body)


def test_a_status_is_written_apart(api: Api, at: Paths) -> None:
    async def body(kube: ApiServer) -> None:
        made = await kube.send(Request("POST", at.jobs, body=job("a")))
        sent = {**made, "spec": {**made["spec"], "replicas": 9}, "status": {"state": "Running"}}
        written = await kube.send(Request("PUT", f"{at.jobs}/a/status", body=sent))
        assert written["spec"] == made["spec"]
        assert written["status"]["state"] == "Running"
        assert written["metadata"]["generation"] == 1
        again = await kube.send(Request("PUT", f"{at.jobs}/a/status", body=written))
        assert again["metadata"]["resourceVersion"] == written["metadata"]["resourceVersion"]
        bare = {name: each for name, each in again.items() if name != "spec"}
        bare["metadata"] = {name: again["metadata"][name] for name in ("name", "resourceVersion")}
        ended = await kube.send(
            Request("PUT", f"{at.jobs}/a/status", body={**bare, "status": {"state": "Failed"}})
        )
        assert (ended["spec"], ended["status"]["state"]) == (made["spec"], "Failed")
        assert ended["metadata"]["uid"] == made["metadata"]["uid"]

    api(body)


@pytest.mark.parametrize("part", ["", "/status"])
def test_an_update_of_an_old_version_is_a_conflict(api: Api, at: Paths, part: str) -> None:
    async def body(kube: ApiServer) -> None:
        made = await kube.send(Request("POST", at.jobs, body=job("a")))
        newer = {**made, "status": {"state": "Running"}}
        await kube.send(Request("PUT", f"{at.jobs}/a/status", body=newer))
        with pytest.raises(ApiError, match="has been modified") as error:
            await kube.send(
                Request("PUT", f"{at.jobs}/a{part}", body={**made, "status": {"state": "x"}})
            )
        assert (error.value.status, error.value.reason) == (409, "Conflict")

    api(body)


def test_a_job_is_not_updated_without_a_version(api: Api, at: Paths) -> None:
    async def body(kube: ApiServer) -> None:
        await kube.send(Request("POST", at.jobs, body=job("a")))
        with pytest.raises(ApiError, match="must be specified for an update") as error:
            await kube.send(Request("PUT", f"{at.jobs}/a", body=job("a")))
        assert error.value.status == 422

    api(body)


def test_a_merge_patch_changes_what_it_names(api: Api, at: Paths) -> None:
    async def body(kube: ApiServer) -> None:
        await kube.send(Request("POST", at.jobs, body=job("a", annotations={"x": "1", "y": "2"})))
        patched = await kube.send(
            Request(
                "PATCH",
                f"{at.jobs}/a",
                body={"metadata": {"annotations": {"x": None}}, "spec": {"replicas": 5}},
                headers={"Content-Type": "application/merge-patch+json"},
            )
        )
        assert patched["metadata"]["annotations"] == {"y": "2"}
        assert patched["spec"]["replicas"] == 5
        assert patched["spec"]["command"] == ["torchrun", "train.py"]

    api(body)


def test_a_patch_must_say_of_what_kind_it_is(api: Api, at: Paths) -> None:
    async def body(kube: ApiServer) -> None:
        await kube.send(Request("POST", at.jobs, body=job("a")))
        with pytest.raises(ApiError) as error:
            await kube.send(Request("PATCH", f"{at.jobs}/a", body={"spec": {"replicas": 5}}))
        assert error.value.status == 415

    api(body)


# Deletion


@pytest.mark.parametrize("precondition", ["uid", "resourceVersion"])
def test_a_deletion_of_another_object_is_a_conflict(api: Api, at: Paths, precondition: str) -> None:
    async def body(kube: ApiServer) -> None:
        made = await kube.send(Request("POST", at.pods, body=pod("a")))
        options = {"apiVersion": "v1", "kind": "DeleteOptions"}
        other = {**options, "preconditions": {precondition: "1"}}
        with pytest.raises(ApiError) as error:
            await kube.send(Request("DELETE", f"{at.pods}/a", body=other))
        assert (error.value.status, error.value.reason) == (409, "Conflict")
        this = {**options, "preconditions": {precondition: made["metadata"][precondition]}}
        await kube.send(Request("DELETE", f"{at.pods}/a", body=this))

    api(body)


def test_a_pod_without_a_node_goes_at_once(api: Api, at: Paths) -> None:
    async def body(kube: ApiServer) -> None:
        made = await kube.send(Request("POST", at.pods, body=pod("a")))
        deleted = await kube.send(Request("DELETE", f"{at.pods}/a"))
        assert deleted["metadata"]["uid"] == made["metadata"]["uid"]
        with pytest.raises(ApiError):
            await kube.send(Request("GET", f"{at.pods}/a"))
        again = await kube.send(Request("POST", at.pods, body=pod("a")))
        assert again["metadata"]["uid"] != made["metadata"]["uid"]

    api(body)


def test_a_pod_with_a_node_stays_until_it_has_ended(api: Api, at: Paths) -> None:
    async def body(kube: ApiServer) -> None:
        await bound(kube, at.pods, "a")
        deleted = await kube.send(Request("DELETE", f"{at.pods}/a"))
        assert deleted["metadata"]["deletionTimestamp"]
        assert deleted["metadata"]["deletionGracePeriodSeconds"] == 30
        again = await kube.send(Request("DELETE", f"{at.pods}/a"))
        assert again["metadata"]["deletionTimestamp"] == deleted["metadata"]["deletionTimestamp"]
        with pytest.raises(ApiError, match="already exists"):
            await kube.send(Request("POST", at.pods, body=pod("a")))
        await kube.send(Request("DELETE", f"{at.pods}/a", body={"gracePeriodSeconds": 0}))
        with pytest.raises(ApiError) as error:
            await kube.send(Request("GET", f"{at.pods}/a"))
        assert error.value.status == 404

    api(body)


def test_a_pod_that_has_ended_goes_at_once(api: Api, at: Paths) -> None:
    async def body(kube: ApiServer) -> None:
        made = await bound(kube, at.pods, "a")
        ended = {**made, "status": {"phase": "Failed"}}
        await kube.send(Request("PUT", f"{at.pods}/a/status", body=ended))
        await kube.send(Request("DELETE", f"{at.pods}/a"))
        with pytest.raises(ApiError):
            await kube.send(Request("GET", f"{at.pods}/a"))

    api(body)


def test_a_pod_is_bound_once(api: Api, at: Paths) -> None:
    async def body(kube: ApiServer) -> None:
        made = await bound(kube, at.pods, "a", "node-7")
        assert made["spec"]["nodeName"] == "node-7"
        assert {"PodScheduled": "True"}.items() <= {
            each["type"]: each["status"] for each in made["status"]["conditions"]
        }.items()
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "a"}}
        with pytest.raises(ApiError) as error:
            await kube.send(
                Request(
                    "POST", f"{at.pods}/a/binding", body={**binding, "target": {"name": "node-8"}}
                )
            )
        assert error.value.status == 409

    api(body)


def test_a_deleted_job_is_told_in_few_words(api: Api, at: Paths) -> None:
    async def body(kube: ApiServer) -> None:
        made = await kube.send(Request("POST", at.jobs, body=job("a")))
        deleted = await kube.send(Request("DELETE", f"{at.jobs}/a"))
        assert (deleted["kind"], deleted["status"]) == ("Status", "Success")
        assert deleted["details"]["uid"] == made["metadata"]["uid"]

    api(body)


def test_a_job_deleted_in_the_foreground_stays_for_its_children(api: Api, at: Paths) -> None:
    async def body(kube: ApiServer) -> None:
        await kube.send(Request("POST", at.jobs, body=job("a")))
        options = {"propagationPolicy": "Foreground"}
        deleted = await kube.send(Request("DELETE", f"{at.jobs}/a", body=options))
        assert deleted["metadata"]["deletionTimestamp"]
        found = await kube.send(Request("GET", f"{at.jobs}/a"))
        assert found["metadata"]["finalizers"] == ["foregroundDeletion"]
        del found["metadata"]["finalizers"]  # as the garbage collector does in the end
        await kube.send(Request("PUT", f"{at.jobs}/a", body=found))
        with pytest.raises(ApiError, match="not found"):
            await kube.send(Request("GET", f"{at.jobs}/a"))

    api(body)


# Watches


def test_a_watch_goes_on_where_a_list_ended(api: Api, at: Paths) -> None:
    async def body(kube: ApiServer) -> None:
        await kube.send(Request("POST", at.pods, body=pod("a")))
        version = (await kube.send(Request("GET", at.pods)))["metadata"]["resourceVersion"]
        made = await bound(kube, at.pods, "b")
        deleted = await kube.send(Request("DELETE", f"{at.pods}/b"))
        gone = await kube.send(Request("DELETE", f"{at.pods}/b", body={"gracePeriodSeconds": 0}))
        found = await events(kube, at.pods, 5, resourceVersion=version)
        kinds = ["ADDED", "MODIFIED", "MODIFIED", "MODIFIED", "DELETED"]
        assert told(found) == [(kind, "b") for kind in kinds]
        versions = [each["object"]["metadata"]["resourceVersion"] for each in found]
        assert versions == sorted(set(versions), key=int)
        for index, answer in ((1, made), (2, deleted), (4, gone)):
            assert versions[index] == answer["metadata"]["resourceVersion"]

    api(body)


def test_a_pod_that_goes_at_once_is_told_to_go_first(api: Api, at: Paths) -> None:
    async def body(kube: ApiServer) -> None:
        made = await kube.send(Request("POST", at.pods, body=pod("a")))
        version = made["metadata"]["resourceVersion"]
        gone = await kube.send(Request("DELETE", f"{at.pods}/a"))
        assert gone["metadata"]["deletionGracePeriodSeconds"] == 0
        found = await events(kube, at.pods, 2, resourceVersion=version)
        assert told(found) == [("MODIFIED", "a"), ("DELETED", "a")]
        for event in found:
            assert event["object"]["metadata"]["deletionTimestamp"]
        last = found[-1]["object"]["metadata"]["resourceVersion"]
        assert last == gone["metadata"]["resourceVersion"]

    api(body)


def test_a_watch_tells_what_comes_later(api: Api, at: Paths) -> None:
    async def body(kube: ApiServer) -> None:
        version = (await kube.send(Request("GET", at.pods)))["metadata"]["resourceVersion"]
        watching = asyncio.ensure_future(events(kube, at.pods, 1, resourceVersion=version))
        await asyncio.sleep(0)
        await kube.send(Request("POST", at.pods, body=pod("a")))
        assert told(await watching) == [("ADDED", "a")]

    api(body)


def test_a_watch_without_a_version_begins_with_what_there_is(api: Api, at: Paths) -> None:
    async def body(kube: ApiServer) -> None:
        await kube.send(Request("POST", at.pods, body=pod("a")))
        assert told(await events(kube, at.pods, 1)) == [("ADDED", "a")]

    api(body)


def test_what_leaves_a_selection_is_told_as_deleted(api: Api, at: Paths) -> None:
    async def body(kube: ApiServer) -> None:
        made = await kube.send(Request("POST", at.pods, body=pod("a")))
        version = made["metadata"]["resourceVersion"]
        for labels in ({}, {JOB_LABEL: "digits"}):
            made["metadata"]["labels"] = labels
            made = await kube.send(Request("PUT", f"{at.pods}/a", body=made))
        query = {"labelSelector": f"{JOB_LABEL}=digits", "resourceVersion": version}
        found = await events(kube, at.pods, 2, **query)
        assert told(found) == [("DELETED", "a"), ("ADDED", "a")]

    api(body)


def test_the_server_ends_a_watch_when_asked_to(api: Api, at: Paths) -> None:
    async def body(kube: ApiServer) -> None:
        version = (await kube.send(Request("GET", at.pods)))["metadata"]["resourceVersion"]
        query = {"resourceVersion": version, "timeoutSeconds": "1"}
        async for event in kube.watch(at.pods, query=query, silence=60):
            raise AssertionError(event)

    api(body)
