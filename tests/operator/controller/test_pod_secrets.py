"""The Secrets of pods: each lives as long as its pod, and no pod waits for one in vain."""

from __future__ import annotations

import asyncio
from functools import partial

from ddpjob_operator.kube.interface import ApiError
from support.fake_objects import SECRETS
from support.reconciling.in_memory import CheckingKube, play_in_memory
from support.reconciling.life import RENDEZVOUS, training, worker
from support.reconciling.stage import Stage
from support.reconciling.view import View

WEBHOOK = ApiError(500, "InternalError", "failed calling webhook policy.example.com")


def owners(kube: CheckingKube) -> list[str]:
    """The pods whose Secrets exist, after a turn of the garbage collector."""
    kube.collect_garbage()
    found = kube.objects.all(SECRETS, "default", "")
    return sorted(each["metadata"]["ownerReferences"][0]["name"] for each in found)


def is_replaced(incarnation: int, view: View) -> bool:
    return view.trains("000-1", f"001-{incarnation + 1}")


def test_the_secret_of_a_replaced_pod_goes_with_it() -> None:
    kube = CheckingKube()

    async def story(stage: Stage) -> None:
        await training(stage, "000-1", "001-1")
        for incarnation in (1, 2, 3):
            await stage.delete_pod(worker(1, incarnation), vanishes=incarnation == 2)
            await stage.until(partial(is_replaced, incarnation), "it is replaced")
        await stage.delete_pod(RENDEZVOUS, vanishes=True)
        view = await stage.until(lambda v: v.rendezvous and RENDEZVOUS not in v.pods, "term 2")
        assert owners(kube) == sorted(view.pods)

    play_in_memory(story, kube)


def test_a_pod_of_an_operator_that_died_before_the_secret_starts() -> None:
    """The next operator does not read Secrets, and creates that of each pod that has not started."""
    kube = CheckingKube()

    async def story(stage: Stage) -> None:
        kube.refuse("POST", "secrets", WEBHOOK)
        await stage.create(replicas=2)
        before = await stage.until(lambda v: v.rendezvous and v.workers, "there are pods")
        await stage.stop_operator()
        kube.allow()
        assert owners(kube) == []
        await stage.start_operator()
        after = await stage.until(lambda v: v.trains("000-1", "001-1"), "it trains")
        assert before.uids().items() <= after.uids().items()

    play_in_memory(story, kube)


def test_no_more_pods_are_created_than_have_secrets() -> None:
    """A pod without its Secret takes a node, and does not start."""
    kube = CheckingKube()

    async def story(stage: Stage) -> None:
        kube.refuse("POST", "secrets", WEBHOOK)
        await stage.create(replicas=20, maxReplicas=20)
        view = await stage.until(lambda v: v.is_stalled("ApiServerFails"), "it is in the status")
        await asyncio.sleep(600)
        view = await stage.view()
        assert len(view.workers) == 1
        assert stage.wire.counts()["POST secrets"] < 60
        kube.allow()
        await stage.until(lambda v: len(v.members) == 20, "all train")

    play_in_memory(story, kube)


def test_a_pod_with_the_name_of_an_earlier_one_keeps_its_secret() -> None:
    """The garbage collector deletes the Secret of the earlier pod after the later pod was created."""
    kube = CheckingKube()

    async def story(stage: Stage) -> None:
        stage.nodes.capacity = 2  # the rendezvous pod and one worker
        await stage.create(replicas=2)
        first = await stage.until(lambda v: len(v.workers) == 2 and v.members, "one has no node")
        [name] = set(first.workers) - set(first.members)
        await stage.change(replicas=1)
        await stage.until(lambda v: name not in v.pods, "it is deleted")
        await stage.change(replicas=2)
        await stage.until(lambda v: name in v.pods, "another one has its name")
        assert owners(kube).count(name) == 1
        stage.nodes.capacity = 100
        await stage.until(lambda v: len(v.members) == 2, "it has started")

    play_in_memory(story, kube)


def test_a_pod_gets_its_secret_once() -> None:
    """Also if it waits for a node while its job has many passes."""
    kube = CheckingKube()

    async def story(stage: Stage) -> None:
        stage.nodes.capacity = 2
        await stage.create(replicas=2)
        await stage.until(lambda v: len(v.workers) == 2 and v.members, "one has no node")
        await stage.restart_operator()
        for _ in range(20):
            stage.controller.changed(stage.namespace, "digits")
            await asyncio.sleep(10)
        assert stage.wire.counts()["POST secrets"] == 4, "three, and one by the next operator"

    play_in_memory(story, kube)
