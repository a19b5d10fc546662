"""What the operator does to pods of which the API server knows more than it does."""

from __future__ import annotations

from ddpjob_operator.api.constants import MAIN_GROUP, worker_name
from ddpjob_operator.controller.keys.job_keys import JobKeys
from ddpjob_operator.controller.objects.cluster import Cluster
from ddpjob_operator.controller.transports import direct_transport
from ddpjob_operator.kube.interface import ApiServer
from ddpjob_operator.planner.actions import CreateWorker, DeleteWorker
from ddpjob_operator.rendezvous.session_pool import SessionPool
from ddpjob_operator.request import Request
from support.builders import make_job
from support.keys import OPERATOR_KEY
from support.objects import Api

POD = "digits-worker-000-1"
KEY = JobKeys(OPERATOR_KEY).key_of("one", ())
PATH = f"/api/v1/namespaces/default/pods/{POD}"


def nobody(*_: object) -> None:
    """Nobody waits for changes."""


def two_clusters(kube: ApiServer) -> list[Cluster]:
    """Two operators whose watches do not run."""
    return [
        Cluster(
            kube,
            "agent:1",
            (),
            SessionPool(direct_transport, nobody),
            nobody,
            JobKeys(OPERATOR_KEY),
        )
        for _ in range(2)
    ]


def test_a_successor_of_the_same_name_is_not_deleted(api: Api) -> None:
    job = make_job()
    job = job.model_copy(update={"metadata": job.metadata.model_copy(update={"uid": "one"})})

    async def body(kube: ApiServer) -> None:
        late, prompt = two_clusters(kube)
        for cluster in (late, prompt):
            assert await cluster.create(job, CreateWorker(POD, MAIN_GROUP, 0, 1), KEY) is None
            if cluster is late:
                await kube.send(Request("DELETE", PATH))
        await late.delete(job, await late.observe(job), DeleteWorker(POD))
        assert (await kube.send(Request("GET", PATH)))["metadata"]["name"] == POD
        await prompt.delete(job, await prompt.observe(job), DeleteWorker(POD))
        assert (await kube.send(Request("GET", PATH.rpartition("/")[0])))["items"] == []

    api(body)


def test_a_pod_in_the_place_of_a_new_worker_is_found_before_its_creation(api: Api) -> None:
    job = make_job()
    job = job.model_copy(update={"metadata": job.metadata.model_copy(update={"uid": "one"})})

    async def body(kube: ApiServer) -> None:
        late, prompt = two_clusters(kube)
        other = worker_name(job.metadata.name, MAIN_GROUP, 1, 1)
        await late.create(job, CreateWorker(other, MAIN_GROUP, 1, 1), KEY)
        await prompt.create(job, CreateWorker(POD, MAIN_GROUP, 0, 1), KEY)
        new = CreateWorker(worker_name(job.metadata.name, MAIN_GROUP, 0, 2), MAIN_GROUP, 0, 2)
        for is_outdated in (True, False):
            seen = await late.observe(job)
            assert await late.fresh_pods.differ(job, seen.pods, [new]) is is_outdated
        seen = await late.observe(job)
        assert {worker.name for worker in seen.observed.workers} == {POD, other}

    api(body)
