"""Stories in which something refuses, is in the way, or acts at the wrong moment."""

from __future__ import annotations

from typing import Any

import pytest

from ddpjob_operator.controller.metrics.catalogue import CONTROLLER, PASS_ERRORS
from ddpjob_operator.request import Request
from support.reconciling.life import training, worker
from support.reconciling.stage import JOBS, Play, Stage
from support.reconciling.wire import Call

REMEDY = "delete or rename it"
CONTAINER = {"name": "trainer", "image": "trainer:1", "command": ["torchrun", "train.py"]}


def template(**fields: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{**CONTAINER, **fields}]}}


def test_a_quota_is_told_of_and_waited_for(play: Play) -> None:
    async def story(stage: Stage) -> None:
        await stage.limits.allow_pods(1)
        await stage.create(replicas=2, minReplicas=2)
        view = await stage.until(
            lambda view: view.is_stalled("QuotaExceeded"), "the reason is in the status"
        )
        assert "exceeded quota: few" in view.condition("Stalled")["message"]
        await stage.limits.allow_pods(None)
        await stage.until(lambda view: view.trains("000-1", "001-1"), "it runs")
        await stage.calm()
        assert await stage.reasons() == ["QuotaExceeded", "Started"]

    play(story)


def test_who_is_refused_is_not_waited_for(play: Play) -> None:
    async def story(stage: Stage) -> None:
        await stage.limits.allow_pods(3)
        await stage.create(replicas=3)
        view = await stage.until(
            lambda v: len(v.members) == 2 and v.state == "Running", "two train"
        )
        resizing = view.condition("Resizing")
        assert (resizing["status"], resizing["reason"]) == ("False", "PartlyPlaced")
        assert "exceeded quota" in resizing["message"]
        assert sorted(view.members) == list(stage.service().expected[-1].workers)

    play(story)


def test_a_template_that_the_api_server_refuses_is_told_of_until_it_is_mended(play: Play) -> None:
    async def story(stage: Stage) -> None:
        await stage.create(template=template(imagePullPolicy="Sometimes"))
        view = await stage.until(
            lambda view: view.is_stalled("PodRefused"), "the reason is in the status"
        )
        assert 'Unsupported value: "Sometimes"' in view.condition("Stalled")["message"]
        assert view.workers == []
        await stage.change(template=template(imagePullPolicy="Always"))
        await stage.until(lambda view: view.trains("000-1", "001-1"), "it runs")
        await stage.calm()
        assert await stage.reasons() == ["PodRefused", "Started"]

    play(story)


def test_the_image_of_a_job_that_never_trained_is_corrected(play: Play) -> None:
    async def story(stage: Stage) -> None:
        stage.nodes.silent = {
            "digits-worker-000-1",
            "digits-worker-001-1",
        }  # no kubelet pulls the image
        await stage.create(image="digist:1")
        before = await stage.until(lambda v: len(v.workers) == 2 and v.rendezvous, "pods wait")
        await stage.change(image="digits:1")
        stage.nodes.silent = set()
        after = await stage.until(lambda view: view.trains("000-2", "001-2"), "it runs")
        images = {after.pods[each]["spec"]["containers"][0]["image"] for each in after.workers}
        assert images == {"digits:1"}
        assert not set(before.pods) & set(after.pods)
        await stage.calm()
        assert await stage.reasons() == ["Started"]

    play(story)


def test_a_spec_that_cannot_be_read_is_told_of(play: Play) -> None:
    async def story(stage: Stage) -> None:
        await stage.create(template={"spec": {"containers": []}})  # opaque to the CRD
        view = await stage.until(
            lambda view: view.is_stalled("InvalidSpec"), "the reason is in the status"
        )
        assert "template" in view.condition("Stalled")["message"]
        assert (await stage.calm()).pods == {}
        await stage.delete()
        await stage.create(template=template())
        await stage.until(lambda view: view.trains("000-1", "001-1"), "it runs")

    play(story)


def test_somebody_elses_pod_of_our_name_is_told_of_and_left_alone(play: Play) -> None:
    async def story(stage: Stage) -> None:
        path = f"/api/v1/namespaces/{stage.namespace}/pods"
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": worker(0)},
            "spec": {"containers": [{"name": "own", "image": "own:1"}]},
        }
        foreign = await stage.kube.send(Request("POST", path, body=body))
        await stage.create(replicas=2, minReplicas=2)
        view = await stage.until(
            lambda view: view.is_stalled("NameTaken"), "the reason is in the status"
        )
        message = view.condition("Stalled")["message"]
        assert message == f"Pod '{worker(0)}' exists and does not belong to this job; {REMEDY}"
        await stage.calm()
        found = await stage.kube.send(Request("GET", f"{path}/{worker(0)}"))
        assert found["metadata"]["uid"] == foreign["metadata"]["uid"]
        assert "deletionTimestamp" not in found["metadata"]
        await stage.kube.send(Request("DELETE", f"{path}/{worker(0)}"))
        stage.hurry()
        await stage.until(lambda view: view.trains("000-1", "001-1"), "it runs")

    play(story)


def test_orphans_of_a_deleted_job_are_named_with_their_kinds(play: Play) -> None:
    async def story(stage: Stage) -> None:
        base = f"/api/v1/namespaces/{stage.namespace}"
        labels = {"ddpjob.io/job": "digits"}  # deleted with --cascade=orphan: without an owner
        orphans: list[tuple[str, str, str, dict[str, Any]]] = [
            ("services", "Service", "digits-rendezvous", {"ports": [{"port": 29400}]}),
            *(
                ("pods", "Pod", name, {"containers": [{"name": "own", "image": "own:1"}]})
                for name in (worker(0), worker(1))
            ),
        ]
        for plural, kind, name, spec in orphans:
            metadata = {"name": name, "labels": labels}
            body = {"apiVersion": "v1", "kind": kind, "metadata": metadata, "spec": spec}
            await stage.kube.send(Request("POST", f"{base}/{plural}", body=body))
        await stage.create(replicas=2, minReplicas=2)
        view = await stage.until(
            lambda view: view.is_stalled("NameTaken"), "the reason is in the status"
        )
        message = view.condition("Stalled")["message"]
        left = "Service 'digits-rendezvous' is left over from a job of this name"
        assert message.startswith(left)
        assert message.endswith(f"the same holds for {worker(0)}, {worker(1)}")
        for plural, _, name, _ in orphans[1:]:
            await stage.kube.send(Request("DELETE", f"{base}/{plural}/{name}"))
        view = await stage.until(lambda view: len(view.members) == 2, "it runs")
        assert view.condition("Stalled") == {}, "it runs with that Service, and is not stalled"
        await stage.kube.send(Request("DELETE", f"{base}/services/digits-rendezvous"))
        await stage.until(lambda view: view.trains("000-1", "001-1"), "it has its own")

    play(story)


@pytest.mark.parametrize("minimum", [1, 2])
def test_a_worker_that_failed_on_its_node_moves(play: Play, minimum: int) -> None:
    async def story(stage: Stage) -> None:
        before = await training(
            stage, "000-1", "001-1", minReplicas=minimum, failurePolicy={"avoidNodes": 1}
        )
        states = set[str]()

        async def look(call: Call) -> None:
            if call.kind == "PUT ddpjobs/status" and call.body:
                states.add(call.body["status"]["state"])

        stage.wire.before = look
        stage.service().fail_process(worker(1))
        stage.hurry()
        after = await stage.until(lambda view: view.trains("000-1", "001-2"), "it has moved")
        assert before.uids().items() - after.uids().items() == {
            (worker(1), before.uids()[worker(1)])
        }
        assert "Waiting" not in states, "the minimum trains"
        affinity = after.pods[worker(1, 2)]["spec"]["affinity"]["nodeAffinity"]
        assert f"node-{worker(1)}" in str(affinity)
        [node] = after.status["nodeFailures"]
        assert (node["node"], node["avoided"]) == (f"node-{worker(1)}", True)
        await stage.calm()
        text = f"{worker(1)} failed on node node-{worker(1)}, which new pods avoid"
        assert any(text in event for event in await stage.events())

    play(story)


def test_a_deleted_service_is_made_again(play: Play) -> None:
    async def story(stage: Stage) -> None:
        before = await training(stage, "000-1", "001-1")
        path = f"/api/v1/namespaces/{stage.namespace}/services/digits-rendezvous"
        old = await stage.kube.send(Request("DELETE", path))
        view = await stage.until(lambda view: view.services, "it is there again")
        assert view.services == ["digits-rendezvous"]
        new = await stage.kube.send(Request("GET", path))
        gone = old["details"]["uid"] if old["kind"] == "Status" else old["metadata"]["uid"]
        assert new["metadata"]["uid"] != gone
        assert (await stage.calm()).uids() == before.uids()

    play(story)


def test_a_status_that_somebody_else_writes_at_the_same_time_is_written_anew(play: Play) -> None:
    async def story(stage: Stage) -> None:
        meddled = 0

        async def meddle(call: Call) -> None:
            """Between the operator's reading and its writing."""
            nonlocal meddled
            if call.kind == "PUT ddpjobs/status" and meddled < 5:
                meddled += 1
                path = f"{JOBS.format(stage.namespace)}/digits"
                job = await stage.kube.send(Request("GET", path))
                job["status"] = {**job.get("status", {}), "snapshot": {"step": meddled}}
                await stage.kube.send(Request("PUT", f"{path}/status", body=job))

        stage.wire.before = meddle
        await training(stage, "000-1", "001-1")
        assert meddled == 5
        await stage.calm()
        assert await stage.reasons() == ["Started"]
        assert stage.metric(PASS_ERRORS.name, controller=CONTROLLER) >= 5

    play(story)


def test_jobs_of_one_name_in_two_namespaces_do_not_meet(play: Play) -> None:
    async def story(stage: Stage) -> None:
        other = stage.other_namespace
        await stage.create(namespace=other, replicas=3)
        here = await training(stage, "000-1", "001-1")
        there = await stage.until(
            lambda view: view.trains("000-1", "001-1", "002-1"), "the other one", namespace=other
        )
        await stage.change(replicas=0)
        await stage.until(lambda view: view.state == "Suspended" and not view.pods, "suspended")
        await stage.calm()
        assert here.rendezvous == there.rendezvous
        assert (await stage.view(namespace=other)).uids() == there.uids()

    play(story)


LIMITS = {  # of a life with three workers, one lost and one more wanted
    "POST pods": 6,
    "POST secrets": 6,
    "POST services": 1,
    "POST events": 6,
    "DELETE pods": 12,  # a pod that has changed since is read, and its deletion decided again
    "PUT ddpjobs/status": 25,
    "GET ddpjobs": 75,
    "GET pods": 14,  # lists of two namespaces and of the places of replacements, and pods again
    "GET services": 2,
    "GET leases": 8,  # of its node, when the service ends before its pod is gone
}


def test_a_whole_life_takes_few_requests_and_no_patch(play: Play) -> None:
    async def story(stage: Stage) -> None:
        await training(stage, "000-1", "001-1", "002-1")
        await stage.delete_pod(worker(1), vanishes=True)
        await stage.until(lambda view: view.trains("000-1", "001-2", "002-1"), "replaced")
        await stage.change(replicas=4)
        await stage.until(lambda v: v.trains("000-1", "001-2", "002-1", "003-1"), "grown")
        stage.service().finish()
        await stage.until(lambda view: view.state == "Complete" and not view.pods, "the end")
        counts = stage.wire.counts()
        table = [f"{count:5}  {kind}" for kind, count in sorted(counts.items())]
        print("requests of one job's whole life:", *table, sep="\n")  # noqa: T201 - to be read
        assert {kind: count for kind, count in counts.items() if count > LIMITS.get(kind, 3)} == {}
        assert counts["PATCH ddpjobs"] == counts["PATCH pods"] == 0

    play(story)
