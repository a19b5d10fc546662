"""Requests that fail or whose answers are lost: the rest of the pass goes on, and status has why."""

from __future__ import annotations

import asyncio

import pytest

from ddpjob_operator.controller.keys.job_keys import JobKeys
from ddpjob_operator.kube.interface import ApiError, UnreachableError
from support.keys import ANOTHER_OPERATOR_KEY
from support.reconciling.in_memory import CheckingKube, play_in_memory
from support.reconciling.life import RENDEZVOUS, training, worker
from support.reconciling.nodes import key_of
from support.reconciling.stage import Stage
from support.reconciling.wire import Call

WEBHOOK = ApiError(500, "InternalError", "failed calling webhook policy.example.com")
GROUPS = [{"name": "a100", "replicas": 1}, {"name": "zebra", "replicas": 1}]


def test_one_failing_creation_does_not_freeze_a_job() -> None:
    kube = CheckingKube()

    async def story(stage: Stage) -> None:
        await training(stage, "000-1", "001-1", "002-1")
        kube.refuse("POST", "pods", WEBHOOK)
        await stage.delete_pod(worker(1), vanishes=True)
        view = await stage.until(
            lambda v: len(v.members) == 2 and v.state == "Running", "two train"
        )
        assert stage.service().expected[-1].workers == (worker(0), worker(2))
        resizing = view.condition("Resizing")
        assert (resizing["status"], resizing["reason"]) == ("False", "PartlyPlaced")
        assert f"creating {worker(1, 2)} failed: {WEBHOOK}" in resizing["message"]
        kube.allow()
        await stage.until(lambda v: v.trains("000-1", "001-2", "002-1"), "it is whole again")

    play_in_memory(story, kube)


def test_a_pass_that_breaks_off_leaves_no_creation_running() -> None:
    """Else pods come after the next pass has suspended the job."""
    kube = CheckingKube()
    asked, late = 0, list[str]()

    async def story(stage: Stage) -> None:
        async def create_slowly(call: Call) -> None:
            nonlocal asked
            if call.kind != "POST pods":
                return
            asked += 1
            if asked == 20:
                await stage.change(suspend=True)
                kube.after_request = lambda method, path: late.append(f"{method} {path}")
                raise RuntimeError("nobody foresaw it")
            await asyncio.sleep(0.1)

        stage.wire.before = create_slowly
        await stage.create(replicas=60, maxReplicas=60)
        await stage.until(lambda v: v.state == "Suspended" and not v.pods, "it is suspended")
        assert not [each for each in late if each.startswith("POST") and each.endswith("/pods")]

    play_in_memory(story, kube)


def test_a_job_that_cannot_start_names_the_failure() -> None:
    kube = CheckingKube()

    async def story(stage: Stage) -> None:
        kube.refuse("POST", "pods", WEBHOOK)
        await stage.create(replicas=2)
        view = await stage.until(lambda v: v.is_stalled("ApiServerFails"), "it is in the status")
        assert "failed calling webhook" in view.condition("Stalled")["message"]
        kube.allow()
        await stage.until(lambda v: v.trains("000-1", "001-1"), "it trains")

    play_in_memory(story, kube)


def test_a_failing_deletion_stops_no_creation() -> None:
    kube = CheckingKube()

    async def story(stage: Stage) -> None:
        await training(stage, "000-1", "001-1", "002-1")
        kube.refuse("DELETE", "pods", WEBHOOK)
        await stage.change(replicas=2, extraWorkerGroups=GROUPS[:1])
        await stage.until(lambda v: "digits-a100-000-1" in v.members, "the new group trains")
        assert worker(2) in (await stage.view()).pods
        kube.allow()
        await stage.until(lambda v: worker(2) not in v.pods, "the old worker is deleted")

    play_in_memory(story, kube)


@pytest.mark.parametrize("lost", range(1, 12), ids="answer_{}".format)
def test_a_lost_answer_never_gives_a_job_two_keys(lost: int) -> None:
    start_with_lost_answer(lost)


def test_a_lost_answer_and_failures_never_give_a_job_two_keys() -> None:
    start_with_lost_answer(3, failures=3)


def start_with_lost_answer(lost: int, failures: int = 0) -> None:
    """The watch is late, too: the next pass does not know the new object."""
    kube, created = CheckingKube(), 0

    def lose(method: str, path: str) -> None:
        nonlocal created
        if method == "POST" and path.endswith(("/pods", "/secrets", "/services")):
            created += 1
            if created == lost:
                kube.hold_watches()
                asyncio.get_running_loop().call_later(20.0, kube.release_watches)
                if failures:
                    kube.refuse("POST", "pods", WEBHOOK, failures)
                raise UnreachableError("the connection was reset")

    kube.after_request = lose

    async def story(stage: Stage) -> None:
        await stage.create(replicas=2, extraWorkerGroups=GROUPS)
        view = await stage.until(
            lambda v: v.state == "Running" and len(v.members) == 4, "all four train"
        )
        assert created >= lost, "no answer was lost"
        assert len({key_of(pod) for pod in view.pods.values()}) == 1
        assert {int(name.rpartition("-")[2]) for name in view.pods} == {1}, "none was replaced"

    play_in_memory(story, kube)


@pytest.mark.parametrize("pod", [RENDEZVOUS, worker(1), "digits-a100-000-1"])
def test_a_pod_with_the_keys_of_another_operator_is_replaced(pod: str) -> None:
    """Whatever gave a job two keys."""
    kube = CheckingKube()

    async def story(stage: Stage) -> None:
        await stage.create(replicas=2, extraWorkerGroups=GROUPS[:1])
        await stage.until(lambda v: len(v.members) == 3 and v.state == "Running", "all train")
        await stage.stop_operator()
        old = kube.pods()[pod]
        await stage.delete_pod(pod, vanishes=True)
        old["metadata"]["labels"]["ddpjob.io/key"] = "of-another"
        for field in ("uid", "resourceVersion", "creationTimestamp"):
            del old["metadata"][field]
        kube.add({"apiVersion": "v1", "kind": "Pod", **old, "status": {"phase": "Running"}})
        await stage.start_operator()
        view = await stage.until(
            lambda v: pod not in v.pods and len(v.members) == 3 and v.state == "Running",
            "another one is in its place",
        )
        assert len({key_of(each) for each in view.pods.values()}) == 1

    play_in_memory(story, kube)


def test_another_key_of_the_operator_replaces_all_pods_of_a_job() -> None:
    kube = CheckingKube()

    async def story(stage: Stage) -> None:
        before = await training(stage, "000-1", "001-1")
        await stage.stop_operator()
        stage.keys = JobKeys(ANOTHER_OPERATOR_KEY)
        await stage.start_operator()
        after = await stage.until(
            lambda v: not v.uids().items() & before.uids().items() and v.trains("000-2", "001-2"),
            "all pods are new",
        )
        assert after.rendezvous == ["digits-rendezvous-2"]

    play_in_memory(story, kube)


def test_a_refused_secret_is_named_and_tried_again() -> None:
    kube = CheckingKube()

    async def story(stage: Stage) -> None:
        kube.refuse("POST", "secrets", WEBHOOK)
        await stage.create(replicas=2)
        view = await stage.until(lambda v: v.is_stalled("ApiServerFails"), "it is in the status")
        assert "creating the Secret of" in view.condition("Stalled")["message"]
        kube.allow()
        await stage.until(lambda v: v.trains("000-1", "001-1"), "it trains")

    play_in_memory(story, kube)


def test_the_operator_only_creates_secrets() -> None:
    kube = CheckingKube()

    async def story(stage: Stage) -> None:
        await training(stage, "000-1", "001-1")
        await stage.delete_pod(worker(1), vanishes=True)
        await stage.until(lambda v: v.trains("000-1", "001-2"), "it is replaced")
        methods = {call.method for call in stage.wire.calls if "/secrets" in call.path}
        assert methods == {"POST"}

    play_in_memory(story, kube)


def test_a_large_job_behind_a_quota_sends_few_requests() -> None:
    kube = CheckingKube()

    async def story(stage: Stage) -> None:
        await stage.limits.allow_pods(1)
        await stage.create(replicas=100, maxReplicas=100)
        await stage.until(lambda v: v.is_stalled("QuotaExceeded"), "it is in the status")
        before = stage.wire.counts()["POST pods"]
        end = stage.clock() + 600
        for _ in range(60):
            stage.controller.changed(stage.namespace, "digits")
            await asyncio.sleep(10)
        assert stage.clock() >= end
        assert 5 <= stage.wire.counts()["POST pods"] - before <= 20

    play_in_memory(story, kube)


@pytest.mark.parametrize("minimum", [1, 2])
def test_the_service_of_a_suspended_job_outlives_its_workers(minimum: int) -> None:
    """The workers agree on their last step through it."""
    kube = CheckingKube()
    living: list[list[str]] = []

    def look(method: str, path: str) -> None:
        if method == "DELETE" and path.endswith(RENDEZVOUS):
            living.append([name for name in kube.pods() if name != RENDEZVOUS])

    kube.before_request = look

    async def story(stage: Stage) -> None:
        await training(stage, "000-1", "001-1", minReplicas=minimum)
        await stage.change(suspend=True)
        await stage.until(lambda v: v.state == "Suspended" and not v.pods, "nothing is left")
        assert living
        assert not any(living)
        await stage.change(suspend=False)
        await stage.until(lambda v: v.state == "Running", "it trains again")

    play_in_memory(story, kube)
