"""Stories of jobs to which nothing happens but what their users want, and lost pods."""

from __future__ import annotations

from typing import Any

import pytest

from ddpjob_operator.controller.keys.job_keys import JobKeys
from ddpjob_operator.rendezvous.session_pool import Key
from support.keys import ANOTHER_OPERATOR_KEY, OPERATOR_KEY
from support.reconciling.nodes import ended, key_of
from support.reconciling.stage import Play, Stage
from support.reconciling.view import View
from support.reconciling.wire import Call

RENDEZVOUS = "digits-rendezvous-1"


def worker(index: int, incarnation: int = 1) -> str:
    return f"digits-worker-{index:03d}-{incarnation}"


async def training(stage: Stage, *workers: str, **spec: Any) -> View:
    """A job that has started."""
    await stage.create(**{"replicas": len(workers), **spec})
    return await stage.until(lambda view: view.trains(*workers), "the job trains")


def test_a_new_job_gets_service_rendezvous_and_workers(play: Play) -> None:
    async def story(stage: Stage) -> None:
        view = await training(stage, "000-1", "001-1", "002-1")
        assert view.services == ["digits-rendezvous"]
        assert view.rendezvous == [RENDEZVOUS]
        assert len({key_of(pod) for pod in view.pods.values()}) == 1
        for pod in view.pods.values():
            [owner] = pod["metadata"]["ownerReferences"]
            assert (owner["uid"], owner["controller"]) == (view.job["metadata"]["uid"], True)

    play(story)


def test_the_epoch_is_in_status_before_the_rendezvous_pod_is_created(play: Play) -> None:
    async def story(stage: Stage) -> None:
        seen: list[Any] = []

        async def look(call: Call) -> None:
            if call.method == "POST" and call.body and call.body["metadata"].get("name") == pod:
                seen.append((await stage.view()).status.get("rendezvousTerm"))

        pod, stage.wire.before = RENDEZVOUS, look
        await training(stage, "000-1", "001-1")
        pod = "digits-rendezvous-2"
        await stage.delete_pod(RENDEZVOUS)
        await stage.until(lambda view: view.rendezvous == [pod], "a new rendezvous pod")
        assert seen == [1, 2]

    play(story)


def test_status_and_one_event_tell_of_the_membership(play: Play) -> None:
    async def story(stage: Stage) -> None:
        await training(stage, "000-1", "001-1", "002-1")
        stage.service().tell(step=7, total_steps=90, metrics={"loss": 0.5}, snapshot_step=5)
        stage.hurry()
        view = await stage.until(lambda view: "snapshot" in view.status, "the snapshot in status")
        status = view.status
        assert status["membership"]["id"] == "1.1.1"
        assert status["membership"]["worldSize"] == 3
        assert status["membership"]["cause"] == "started"
        assert (status["replicas"], status["restarts"]["total"]) == (3, 0)
        progress = {"step": 7, "totalSteps": 90, "display": "7/90", "metrics": {"loss": 0.5}}
        assert status["progress"] == progress
        assert status["snapshot"] == {"step": 5}
        await stage.calm()
        assert await stage.reasons() == ["Started"]

    play(story)


def test_a_service_is_told_whom_to_expect_and_after_a_restart_again(play: Play) -> None:
    async def story(stage: Stage) -> None:
        await training(stage, "000-1", "001-1")
        old = stage.service()
        assert old.expected[-1].workers == (worker(0), worker(1))
        stage.nodes.restart_service(Key(stage.namespace, "digits"))

        async def told() -> bool:
            return bool(stage.service().expected)

        await stage.wait(told, "the restarted service has the expectation")
        assert stage.service().expected[-1] == old.expected[-1]
        await stage.calm()
        assert await stage.reasons() == ["Started"]

    play(story)


@pytest.mark.parametrize("how", ["deleted", "vanished", "evicted"])
def test_a_lost_worker_is_replaced_and_no_other_touched(play: Play, how: str) -> None:
    async def story(stage: Stage) -> None:
        before = await training(stage, "000-1", "001-1", "002-1")
        if how == "evicted":
            pod = {"apiVersion": "v1", "kind": "Pod", **before.pods[worker(1)]}
            status = {**ended(pod, 137), "reason": "Evicted", "message": "low on memory"}
            await stage.nodes.set_status(stage.pod_path(worker(1)), pod, status)
        else:
            await stage.delete_pod(worker(1), vanishes=how == "vanished")
        after = await stage.until(lambda v: v.trains("000-1", "001-2", "002-1"), "it is replaced")
        assert {n: u for n, u in after.uids().items() if n != worker(1, 2)} == {
            n: u for n, u in before.uids().items() if n != worker(1)
        }
        await stage.calm()
        left = "WorkerLeft" if how == "deleted" else "WorkerLost"
        told = await stage.reasons()
        # A worker that is only deleted may be gone before the service excludes it.
        assert [t for t in told if not t.startswith("WorkerL")] == [
            "Started",
            "WorkerJoined",
            "WorkerReplaced",
        ]
        assert [t for t in told if t.startswith("WorkerL")] in ([left], ["WorkerLost"])

    play(story)


def test_a_lost_rendezvous_pod_is_replaced_in_the_next_term(play: Play) -> None:
    async def story(stage: Stage) -> None:
        before = await training(stage, "000-1", "001-1")
        await stage.delete_pod(RENDEZVOUS, vanishes=True)
        await stage.until(lambda view: view.rendezvous == ["digits-rendezvous-2"], "a new pod")
        after = await stage.until(
            lambda v: v.status["observedRendezvousTerm"] == 2 and v.trains("000-1", "001-1"),
            "noticed",
        )
        assert key_of(after.pods["digits-rendezvous-2"]) == key_of(before.pods[RENDEZVOUS])
        assert {n: after.uids()[n] for n in before.workers} == {
            n: before.uids()[n] for n in before.workers
        }
        assert stage.service().expected[-1].workers == (worker(0), worker(1))
        await stage.calm()
        assert await stage.reasons() == ["Started"]

    play(story)


def test_a_job_grows_and_shrinks_from_the_top_after_its_workers_have_left(play: Play) -> None:
    async def story(stage: Stage) -> None:
        torn: list[str] = []

        async def look(call: Call) -> None:
            name = call.path.rpartition("/")[2]
            if call.method == "DELETE" and name in stage.service().members:
                torn.append(name)

        before = await training(stage, "000-1", "001-1")
        stage.wire.before = look
        await stage.change(replicas=4)
        grown = await stage.until(lambda v: v.trains("000-1", "001-1", "002-1", "003-1"), "grown")
        assert before.uids().items() <= grown.uids().items()
        await stage.change(replicas=1)
        shrunk = await stage.until(lambda view: view.trains("000-1"), "shrunk")
        assert shrunk.uids().items() <= before.uids().items()
        assert not torn
        await stage.calm()
        assert await stage.reasons() == ["Started", "WorkerJoined", "WorkerLeft"]

    play(story)


def test_workers_without_a_node_go_before_those_that_run(play: Play) -> None:
    async def story(stage: Stage) -> None:
        before = await training(stage, "000-1", "001-1", "002-1")
        await stage.delete_pod(worker(0), vanishes=True)
        stage.nodes.capacity = 3  # the rendezvous pod and two workers: none for another
        await stage.until(
            lambda v: worker(0, 2) in v.workers and len(v.members) == 2 and v.state == "Running",
            "the others continue",
        )
        await stage.change(replicas=2)
        after = await stage.until(lambda view: view.trains("001-1", "002-1"), "two are wanted")
        assert after.uids().items() <= before.uids().items()

    play(story)


@pytest.mark.parametrize(
    ("pause", "resume"),
    [({"replicas": 0}, {"replicas": 2}), ({"suspend": True}, {"suspend": False})],
    ids=["no replicas", "suspend"],
)
def test_a_suspended_job_has_no_pods_until_it_is_resumed(
    play: Play, pause: dict[str, Any], resume: dict[str, Any]
) -> None:
    async def story(stage: Stage) -> None:
        await training(stage, "000-1", "001-1")
        await stage.change(**pause)
        view = await stage.until(lambda v: v.state == "Suspended" and not v.pods, "suspended")
        assert "membership" not in view.status
        assert (await stage.calm()).pods == {}
        await stage.change(**resume)
        view = await stage.until(lambda view: view.trains("000-1", "001-1"), "resumed")
        assert view.status["rendezvousTerm"] == 2
        await stage.calm()
        assert await stage.reasons() == ["Resumed", "Started", "Started", "Suspended"]

    play(story)


def test_an_operator_that_comes_anew_writes_nothing_to_a_job_that_runs(play: Play) -> None:
    async def story(stage: Stage) -> None:
        await training(stage, "000-1", "001-1", "002-1")
        before = await stage.calm()
        told = await stage.events()
        await stage.stop_operator()
        first = len(stage.wire.calls)
        await stage.start_operator()
        after = await stage.calm()
        writes = [each for each in stage.wire.calls[first:] if each.method not in ("GET", "WATCH")]
        assert not writes
        assert (after.job, after.uids()) == (before.job, before.uids())
        assert await stage.events() == told

    play(story)


def test_a_rotated_key_replaces_no_pod(play: Play) -> None:
    """A job with pods keeps its key, also for later pods; one without pods takes the new one."""

    async def story(stage: Stage) -> None:
        before = await training(stage, "000-1", "001-1")
        (old,) = {key_of(pod) for pod in before.pods.values()}
        await stage.stop_operator()
        stage.keys = JobKeys(ANOTHER_OPERATOR_KEY, [b"one that no pod has" * 2, OPERATOR_KEY])
        await stage.start_operator()
        await stage.delete_pod(worker(1), vanishes=True)
        after = await stage.until(lambda v: v.trains("000-1", "001-2"), "one pod is new")
        lost = before.uids().items() - after.uids().items()
        assert {name for name, _ in lost} == {worker(1)}
        await stage.delete_pod(RENDEZVOUS, vanishes=True)
        later = await stage.until(
            lambda v: v.rendezvous == ["digits-rendezvous-2"] and v.trains("000-1", "001-2"),
            "the service is new",
        )
        assert {key_of(pod) for pod in (*after.pods.values(), *later.pods.values())} == {old}
        await stage.change(suspend=True)
        await stage.until(lambda v: not v.pods, "all pods have ended")
        await stage.change(suspend=False)
        again = await stage.until(lambda v: v.state == "Running", "it trains again")
        (new,) = {key_of(pod) for pod in again.pods.values()}
        assert new != old

    play(story)
