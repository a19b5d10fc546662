"""What does not answer is observed: status says so, and what is lost is replaced."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ddpjob_operator.kube.interface import ApiError
from ddpjob_operator.rendezvous.session_pool import Key
from support.fake_objects import LEASES
from support.reconciling.in_memory import CheckingKube, play_in_memory
from support.reconciling.life import RENDEZVOUS, training, worker
from support.reconciling.nodes import ended
from support.reconciling.stage import Stage


def key(stage: Stage) -> Key:
    return Key(stage.namespace, "digits")


def test_an_operator_that_is_cut_from_a_running_job_says_that_it_does_not_know() -> None:
    async def story(stage: Stage) -> None:
        before = await training(stage, "000-1", "001-1")
        cut_at = stage.clock()
        stage.nodes.cut.add(key(stage))
        view = await stage.until(
            lambda v: v.condition("Running")["status"] == "Unknown", "the report expires"
        )
        assert stage.clock() - cut_at < 30
        assert view.is_stalled("ServiceUnreachable")
        assert view.state == "Stalled"
        stage.nodes.cut.clear()
        await stage.until(lambda v: v.trains("000-1", "001-1"), "the job is observed again")
        assert (await stage.calm()).uids() == before.uids()
        assert await stage.reasons() == ["ServiceUnreachable", "Started"]

    play_in_memory(story)


def test_an_operator_that_never_reaches_a_service_says_so() -> None:
    async def story(stage: Stage) -> None:
        stage.nodes.cut.add(key(stage))
        await stage.create(replicas=2)
        view = await stage.until(lambda v: v.is_stalled("ServiceUnreachable"), "it is in status")
        message = view.condition("Stalled")["message"]
        assert "no answer in time" in message
        assert "network policies" in message
        assert view.condition("Running")["message"].endswith(": no answer in time")
        stage.nodes.cut.clear()
        await stage.until(lambda v: v.trains("000-1", "001-1"), "it trains")
        assert await stage.reasons() == ["ServiceUnreachable", "Started"]

    play_in_memory(story)


async def lose_readiness(stage: Stage, name: str) -> None:
    """What Kubernetes does with the pods of a node that it does not hear of."""
    pod = {"apiVersion": "v1", "kind": "Pod", **(await stage.view()).pods[name]}
    since = stage.now().strftime("%Y-%m-%dT%H:%M:%SZ")
    ready = {"type": "Ready", "status": "False", "lastTransitionTime": since}
    await stage.nodes.set_status(stage.pod_path(name), pod, {"conditions": [ready]})


def test_the_next_term_takes_over_from_a_service_on_a_lost_node() -> None:
    """Its pod hangs in deletion for ever: nobody waits for it."""

    async def story(stage: Stage) -> None:
        before = await training(stage, "000-1", "001-1")
        stage.nodes.silent.add(RENDEZVOUS)
        stage.nodes.cut.add(key(stage))
        await asyncio.sleep(20)
        lost_at = stage.clock()
        await lose_readiness(stage, RENDEZVOUS)
        await stage.until(lambda v: "digits-rendezvous-2" in v.pods, "the next term")
        stage.nodes.cut.clear()
        await stage.until(lambda v: v.state == "Running", "it is observed again")
        assert stage.clock() - lost_at < 25
        after = await stage.calm()
        assert {after.uids()[name] for name in before.workers} == {
            before.uids()[name] for name in before.workers
        }
        assert after.status["rendezvousTerm"] == 2
        assert after.status["rendezvousFailures"]["count"] == 1
        assert (await stage.reasons()).count("RendezvousReplaced") == 1

    play_in_memory(story)


def renew(kube: CheckingKube, node: str) -> None:
    """Do what a kubelet does every 10 s."""
    key = LEASES, "kube-node-lease", node
    try:
        kube.objects.change(key, spec={"renewTime": str(kube.objects.revision)})
    except ApiError:
        metadata = {"name": node, "namespace": "kube-node-lease"}
        kube.add({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata})


@pytest.mark.parametrize("off", [True, False], ids=["powered_off", "alive"])
def test_the_node_of_a_silent_service_is_lost_if_its_lease_is_not_renewed(*, off: bool) -> None:
    """Nobody has declared the node lost yet, and its pod is ready by its last word."""
    kube = CheckingKube()

    async def story(stage: Stage) -> None:
        before = await training(stage, "000-1", "001-1")
        node = before.pods[RENDEZVOUS]["spec"]["nodeName"]
        for _ in range(4):
            renew(kube, node)
            await asyncio.sleep(10)
        stage.nodes.silent.add(RENDEZVOUS)
        stage.nodes.cut.add(key(stage))
        begin = stage.clock()
        seconds = 22 if off else 120
        for second in range(seconds):
            if not off and second % 10 == 0:
                renew(kube, node)
            await stage.nodes.turn()
            await asyncio.sleep(begin + second + 1 - stage.clock())
        view = await stage.view()
        assert ("digits-rendezvous-2" in view.pods) is off
        if off:
            [failure] = [e for e in await stage.events() if e.startswith("RendezvousReplaced")]
            assert f"node {node} is lost" in failure
            assert view.status["rendezvousFailures"]["node"] == node
            spec = view.pods["digits-rendezvous-2"]["spec"]
            assert node in str(spec["affinity"]["nodeAffinity"])
        reads = {c.path for c in stage.wire.calls if "kube-node-lease" in c.path}
        assert {path.rpartition("/")[2] for path in reads} == {node}

    play_in_memory(story, kube)


def test_without_the_right_to_read_leases_nothing_is_known_of_nodes() -> None:
    kube = CheckingKube()
    kube.refuse("GET", "leases", ApiError(403, "Forbidden", "leases is forbidden"))

    async def story(stage: Stage) -> None:
        before = await training(stage, "000-1", "001-1")
        stage.nodes.cut.add(key(stage))
        await stage.until(lambda v: v.is_stalled("ServiceUnreachable"), "it is in the status")
        await asyncio.sleep(120)
        stage.nodes.cut.clear()
        await stage.until(lambda v: v.trains("000-1", "001-1"), "the job is observed again")
        assert (await stage.calm()).uids() == before.uids()

    play_in_memory(story, kube)


def test_a_service_that_runs_but_is_never_ready_is_replaced_with_growing_patience() -> None:
    async def story(stage: Stage) -> None:
        await training(stage, "000-1", "001-1")
        seen = []
        for term in range(1, 4):
            name = f"digits-rendezvous-{term}"
            await stage.until(lambda v, name=name: name in v.pods, "the term")  # type: ignore[misc]
            await stage.until(lambda v, name=name: _runs(v.pods[name]), "it runs")  # type: ignore[misc]
            await lose_readiness(stage, name)
            since = stage.clock()
            await stage.until(lambda v, name=name: name not in v.pods, "it goes")  # type: ignore[misc]
            seen.append(stage.clock() - since)
        for seconds, patience in zip(seen, (45, 90, 180), strict=True):
            assert patience <= seconds < patience + 20
        view = await stage.until(lambda v: v.trains("000-1", "001-1"), "it trains")
        assert view.status["rendezvousFailures"]["count"] == 3
        await asyncio.sleep(700)
        stage.controller.changed(stage.namespace, "digits")
        await stage.until(lambda v: "rendezvousFailures" not in v.status, "it is forgotten")

    play_in_memory(story)


def test_a_worker_that_falls_silent_is_named_and_replaced_though_its_pod_runs() -> None:
    async def story(stage: Stage) -> None:
        await training(stage, "000-1", "001-1", "002-1")
        stage.nodes.mute.add(worker(1))
        stage.nodes.silent.add(worker(1))  # its deletion does not end
        begin = stage.clock()
        view = await stage.until(
            lambda v: v.condition("Resizing")["reason"] == "WorkerSilent", "it is named"
        )
        assert stage.clock() - begin < 15
        assert worker(1) in view.condition("Resizing")["message"]
        await stage.until(lambda v: worker(1, 2) in v.members, "its successor joins")
        assert 75 <= stage.clock() - begin < 95
        told = await stage.reasons()
        assert (told.count("WorkerSilent"), told.count("WorkerReplaced")) == (1, 1)

    play_in_memory(story)


@pytest.mark.parametrize("alone", [False, True], ids=["others_train", "no_other_trains"])
@pytest.mark.parametrize("off", [True, False], ids=["powered_off", "alive"])
def test_a_silent_worker_on_a_lost_node_is_replaced_soon(*, off: bool, alone: bool) -> None:
    """Only while others train: else its processes may train on alone until they end themselves."""
    kube = CheckingKube()

    async def story(stage: Stage) -> None:
        workers = ["000-1"] if alone else ["000-1", "001-1"]
        before = await training(stage, *workers)
        node = before.pods[worker(0)]["spec"]["nodeName"]
        renew(kube, node)
        stage.nodes.mute.add(worker(0))
        stage.nodes.silent.add(worker(0))
        begin = stage.clock()
        soon = off and not alone
        for second in range(22 if soon else 60):
            if not off and second % 10 == 0:
                renew(kube, node)
            await stage.nodes.turn()
            await asyncio.sleep(begin + second + 1 - stage.clock())
        assert (worker(0, 2) in (await stage.view()).pods) is soon
        await stage.until(lambda v: worker(0, 2) in v.members, "its successor joins")
        if soon:
            [replaced] = [e for e in await stage.events() if e.startswith("WorkerReplaced")]
            assert f"node {node} is lost" in replaced
        reads = {c.path.rpartition("/")[2] for c in stage.wire.calls if "node-lease" in c.path}
        assert (node in reads) is not alone

    play_in_memory(story, kube)


def test_a_worker_that_runs_out_of_memory_again_and_again_fails_the_job() -> None:
    async def story(stage: Stage) -> None:
        await training(stage, "000-1", "001-1")
        created = []
        for incarnation in range(1, 5):
            name = worker(1, incarnation)
            await stage.until(lambda v, name=name: name in v.members, "it joins")  # type: ignore[misc]
            created.append(stage.clock())
            pod = {"apiVersion": "v1", "kind": "Pod", **(await stage.view()).pods[name]}
            status = ended(pod, 137)
            for container in status["containerStatuses"]:
                container["state"]["terminated"]["reason"] = "OOMKilled"
            await stage.nodes.set_status(stage.pod_path(name), pod, status)
        view = await stage.until(lambda v: v.state == "Failed", "the budget is used up")
        failed = view.condition("Failed")
        assert failed["reason"] == "OutOfMemory"
        assert "raise the memory limit" in failed["message"]
        assert created[2] - created[1] >= 5
        assert created[3] - created[2] >= 10
        [failures] = view.status["workerFailures"]
        assert (failures["count"], failures["exitCode"]) == (4, 137)
        assert "OutOfMemory" in await stage.reasons()

    play_in_memory(story)


def _runs(pod: dict[str, Any]) -> bool:
    return bool(pod["status"].get("phase") == "Running")
