"""What users and other controllers do to the objects of a job: the job heals, or its status says why.

Each row begins with a job that trains, and ends with one.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from ddpjob_operator.kube.interface import ApiError
from ddpjob_operator.request import Request
from support.fake_objects import JOBS, JSON, PODS, SECRETS
from support.reconciling.in_memory import CheckingKube, play_in_memory
from support.reconciling.life import RENDEZVOUS, training, worker
from support.reconciling.nodes import ended
from support.reconciling.stage import JOBS as PATH
from support.reconciling.stage import Stage
from support.reconciling.view import View

NO_ACCOUNT = ApiError(
    403, "Forbidden", 'error looking up service account default/trainer: "trainer" not found'
)
TERMINATING = ApiError(
    403,
    "Forbidden",
    "unable to create new content in namespace default because it is being terminated",
)
QUOTA = ApiError(403, "Forbidden", "exceeded quota: few, requested: pods=1")
OTHERS = "example.com/backup"  # somebody else's finalizer


@dataclasses.dataclass
class World:
    """A job that trains with two workers, and those who disturb it."""

    stage: Stage
    kube: CheckingKube

    def edit(self, name: str, **metadata: Any) -> None:
        """Change a pod's metadata, as `kubectl edit` does."""
        key = PODS, "default", name
        pod = self.kube.objects.get(key)
        self.kube.objects.replace(key, {**pod, "metadata": {**pod["metadata"], **metadata}})
        self.kube.tell()

    def label(self, name: str, label: str, value: str | None) -> None:
        labels = dict(self.kube.pods()[name]["metadata"]["labels"])
        del labels[f"ddpjob.io/{label}"]
        self.edit(name, labels={**labels, **({f"ddpjob.io/{label}": value} if value else {})})

    async def refuse_replacement(self, error: ApiError) -> None:
        self.kube.refuse("POST", "pods", error)
        await self.stage.delete_pod(worker(1), vanishes=True)


async def remove_label(world: World) -> None:
    """As users isolate a pod of a ReplicaSet, to look at it."""
    world.label(worker(1), "job", None)


async def remove_role(world: World) -> None:
    world.label(worker(1), "role", None)


async def change_index(world: World) -> None:
    world.label(worker(1), "index", "0")


async def change_key(world: World) -> None:
    world.label(worker(1), "key", "another")


async def remove_owner(world: World) -> None:
    world.edit(worker(1), ownerReferences=[])


async def remove_owner_of_service(world: World) -> None:
    world.edit(RENDEZVOUS, ownerReferences=[])


async def hold_worker(world: World) -> None:
    world.edit(worker(1), finalizers=[OTHERS])
    await world.stage.delete_pod(worker(1))


async def hold_service(world: World) -> None:
    world.edit(RENDEZVOUS, finalizers=[OTHERS])
    await world.stage.delete_pod(RENDEZVOUS)


async def wipe_status(world: World) -> None:
    job = world.kube.job("digits")
    path = f"{PATH.format('default')}/digits/status"
    await world.stage.kube.send(Request("PUT", path, body={**job, "status": {}}))


async def delete_secrets(world: World) -> None:
    for each in list(world.kube.objects.all(SECRETS, "default", "")):
        world.kube.objects.delete((SECRETS, "default", each["metadata"]["name"]), {})


def is_member(name: str, view: View) -> bool:
    return name in view.members


async def set_clock_back(world: World) -> None:
    """After three ends in a row, so the next worker waits."""
    for incarnation in (1, 2, 3):
        name = worker(1, incarnation)
        await world.stage.until(functools.partial(is_member, name), "it trains")
        pod = {"apiVersion": "v1", "kind": "Pod", **world.kube.pods()[name]}
        await world.stage.nodes.set_status(world.stage.pod_path(name), pod, ended(pod, 3))
    await world.stage.until(lambda v: v.is_stalled("WorkersFail"), "the next one waits")
    now = world.stage.now
    world.stage.now = lambda: now() - timedelta(days=1)


Disturb = Callable[[World], Awaitable[None]]
SPEC = {"failurePolicy": {"maxRestarts": {"application": 9}}}


@pytest.mark.parametrize(
    "disturb",
    [
        remove_label, remove_role, change_index, change_key, remove_owner, remove_owner_of_service,
        hold_worker, hold_service, wipe_status, delete_secrets, set_clock_back,
    ],
)  # fmt: skip
def test_a_job_trains_again_by_itself(disturb: Disturb) -> None:
    kube = CheckingKube()

    async def story(stage: Stage) -> None:
        await training(stage, "000-1", "001-1", **SPEC)
        begin = stage.clock()
        await disturb(World(stage, kube))
        for _ in range(30):
            await stage.nodes.turn()
            await asyncio.sleep(2)
        view = await stage.until(
            lambda v: (
                v.state == "Running"
                and len(v.members) == 2
                and sorted(stage.service().members) == sorted(set(v.members) & set(v.pods))
            ),
            "two workers train",
        )
        assert stage.clock() - begin < 400
        own = [each for each in view.pods.values() if each["metadata"].get("ownerReferences")]
        labels = [(p["metadata"]["labels"].get("ddpjob.io/role"), "deletionTimestamp" in p["metadata"])
                  for p in own]  # fmt: skip
        assert labels.count(("worker", False)) == 2
        assert labels.count(("rendezvous", False)) == 1

    play_in_memory(story, kube)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        pytest.param(NO_ACCOUNT, "PartlyPlaced", id="service_account_deleted"),
        pytest.param(QUOTA, "PartlyPlaced", id="quota_appears"),
        pytest.param(TERMINATING, "PartlyPlaced", id="namespace_terminates"),
    ],
)
def test_what_keeps_a_worker_from_its_replacement_is_named(error: ApiError, reason: str) -> None:
    kube = CheckingKube()

    async def story(stage: Stage) -> None:
        await training(stage, "000-1", "001-1")
        await World(stage, kube).refuse_replacement(error)
        view = await stage.until(
            lambda v: error.message in v.condition("Resizing").get("message", ""), "it is named"
        )
        assert view.condition("Resizing")["reason"] == reason
        kube.allow()
        await stage.until(lambda v: v.trains("000-1", "001-2"), "it is whole again")

    play_in_memory(story, kube)


def test_a_job_in_a_namespace_that_terminates_says_so() -> None:
    kube = CheckingKube()

    async def story(stage: Stage) -> None:
        for plural in ("pods", "services", "secrets", "events"):
            kube.refuse("POST", plural, TERMINATING)
        await stage.create(replicas=2)
        view = await stage.until(lambda v: v.is_stalled("PodRefused"), "it is in the status")
        assert "because it is being terminated" in view.condition("Stalled")["message"]

    play_in_memory(story, kube)


def all_placed(view: View) -> bool:
    return len(view.workers) == 2 and all("nodeName" in p["spec"] for p in view.pods.values())


def waiting(reason: str, message: str) -> JSON:
    return {"containerStatuses": [
        {"name": "trainer", "image": "x", "imageID": "x", "restartCount": 0, "ready": False,
         "state": {"waiting": {"reason": reason, "message": message}}}
    ]}  # fmt: skip


def test_an_image_that_cannot_be_pulled_for_a_while_is_named_until_it_is() -> None:
    kube = CheckingKube()

    async def story(stage: Stage) -> None:
        stage.nodes.silent = {worker(0), worker(1)}
        await stage.create(replicas=2, minReplicas=2)
        await stage.until(all_placed, "placed")
        for name in stage.nodes.silent:
            kube.set_pod_status(
                "default", name, waiting("ImagePullBackOff", "no route to registry")
            )
        view = await stage.until(lambda v: v.is_stalled("ImageCannotBePulled"), "it is named")
        assert "no route to registry" in view.condition("Stalled")["message"]
        stage.nodes.silent = set()
        view = await stage.until(lambda v: v.trains("000-1", "001-1"), "it trains")
        assert not view.condition("Stalled")

    play_in_memory(story, kube)


def test_a_secret_that_is_deleted_before_its_pod_starts_is_made_again() -> None:
    """The kubelet repeats the mount for ever, and the pod's status does not name the Secret."""
    kube = CheckingKube()

    async def story(stage: Stage) -> None:
        stage.nodes.silent = {worker(0), worker(1)}
        await stage.create(replicas=2)
        await stage.until(all_placed, "placed")
        await delete_secrets(World(stage, kube))
        stage.nodes.silent = set()
        await stage.until(lambda v: v.trains("000-1", "001-1"), "it trains")

    play_in_memory(story, kube)


@pytest.mark.parametrize(
    ("finalizers", "options", "stay"),
    [
        pytest.param([], {"propagationPolicy": "Foreground"}, False, id="foreground"),
        pytest.param([OTHERS], {}, False, id="held_by_another_controller"),
        pytest.param(["orphan"], {}, True, id="orphans"),
        pytest.param([OTHERS, "orphan"], {}, True, id="held_orphans"),
    ],
)
def test_a_job_that_is_being_deleted_gets_no_pods_and_keeps_only_orphans(
    finalizers: list[str], options: JSON, *, stay: bool
) -> None:
    kube = CheckingKube()

    async def story(stage: Stage) -> None:
        before = await training(stage, "000-1", "001-1")
        key = JOBS, "default", "digits"
        job = kube.job("digits")
        metadata = {**job["metadata"], "finalizers": finalizers}
        kube.objects.replace(key, {**job, "metadata": metadata})
        path = f"{PATH.format('default')}/digits"
        await stage.kube.send(Request("DELETE", path, body=options))
        if not finalizers:
            stage.nodes.deleted_jobs.add(job["metadata"]["uid"])
        if stay:
            await stage.delete_pod(worker(1), vanishes=True)
        else:
            await stage.until(lambda v: not v.pods, "all pods are gone")
        for _ in range(20):
            stage.controller.changed("default", "digits")
            await stage.nodes.turn()
            await asyncio.sleep(10)
        view = await stage.view()
        left = {name for name in before.pods if name != worker(1)} if stay else set()
        assert set(view.pods) == left

    play_in_memory(story, kube)


def test_two_jobs_whose_workers_would_have_one_name_do_not_meet() -> None:
    """Of job `a` with group `b-worker`, and of job `a-b`: the later one waits, and says for what."""
    kube = CheckingKube()

    async def story(stage: Stage) -> None:
        groups = [{"name": "b-worker", "replicas": 1}]
        await stage.create(name="a", replicas=1, extraWorkerGroups=groups)
        await stage.until(lambda v: v.state == "Running" and len(v.members) == 2, "a", "a")
        await stage.create(name="a-b", replicas=1)
        view = await stage.until(lambda v: v.is_stalled("NameTaken"), "it says why", "a-b")
        message = view.condition("Stalled")["message"]
        assert message.startswith("Pod 'a-b-worker-000-1' exists and does not belong to this job")
        assert (await stage.view("a")).state == "Running"
        await stage.delete("a")
        await stage.until(lambda v: v.state == "Running", "the other one trains", "a-b")

    play_in_memory(story, kube)
