"""The CRD and a real API server: what of a job may change, and when."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from cluster.conftest import DEFINITION
from cluster.control_plane import ControlPlane, eventually
from cluster.jobs import Jobs
from ddpjob_operator.api.spec.pinned_fields import PINNED, PINNED_IN_GROUPS, WHILE_IT_RUNS
from ddpjob_operator.api.status import DDPJobStatus
from support.builders import make_status
from support.planning import W0, membership_of
from support.refused import SPOT, TEMPLATE, Object, build_job, group, has

RUNNING = build_job(
    {
        "resources": {"limits": {"cpu": "1"}},
        "env": [{"name": "A", "value": "1"}],
        "processesPerWorker": 2,
        "extraWorkerGroups": [
            {**SPOT, "processesPerWorker": 2, "image": "own"},
            {"name": "whole", "replicas": 1, "template": TEMPLATE},
        ],
    }
)
TRAINS = make_status(state="Running", membership=membership_of(W0))
OTHER: dict[str, Object] = {
    "image": {"image": "other"},
    "command": {"command": ["torchrun", "other.py"]},
    "args": {"args": ["--fast"]},
    "env": {"env": [{"name": "A", "value": "2"}]},
    "resources": {"resources": {"limits": {"cpu": "2"}}},
    "template": {"template": TEMPLATE},
    "gpusPerWorker": {"gpusPerWorker": 1},
    "processesPerWorker": {"processesPerWorker": 3},
    "gpuResource": {"gpuResource": "amd.com/gpu"},
    "launcher": {"launcher": "python"},
    "sagemaker": {"sagemaker": {"distribution": "mpi"}},
    "network": {"network": {"interface": "eth1"}},
    "scheduling": {"scheduling": {"priorityClassName": "high"}},
    "rendezvous": {"rendezvous": {"nodeSelector": {"pool": "small"}}},
    "snapshot": {"snapshot": {"everySteps": 7}},
    "elastic.orphanSeconds": {"elastic": {"orphanSeconds": 90}},
    "elastic.stuckSeconds": {"elastic": {"stuckSeconds": 90}},
    "elastic.warmStart": {"elastic": {"warmStart": False}},
    "elastic.warmImports": {"elastic": {"warmImports": ["numpy"]}},
}
FREE: dict[str, Object] = {
    "replicas": {"replicas": 3},
    "minReplicas": {"minReplicas": 2},
    "maxReplicas": {"maxReplicas": 5},
    "suspend": {"suspend": True},
    "activeDeadlineSeconds": {"activeDeadlineSeconds": 60},
    "ttlSecondsAfterFinished": {"ttlSecondsAfterFinished": 60},
    "failurePolicy": {"failurePolicy": {"maxRestarts": {"application": 9}}},
    "elastic": {"elastic": {"joinPolicy": "Never", "settleSeconds": 1, "heartbeatSeconds": 5}},
    "spelled_out_defaults": {"launcher": "torchrun", "gpuResource": "nvidia.com/gpu"},
    "order_of_groups": {"extraWorkerGroups": RUNNING["spec"]["extraWorkerGroups"][::-1]},
}


@pytest.fixture(scope="module")
def running(apiserver: ControlPlane, crd: None) -> Jobs:
    """A job that runs, for tests that do not change it."""
    apiserver.create_namespace("changes")
    jobs = Jobs(apiserver, "changes")
    jobs.create(RUNNING)
    jobs.write_status(TRAINS)
    return jobs


def changed(**spec: Any) -> Object:
    return {**RUNNING, "spec": {**RUNNING["spec"], **spec}}


def changed_group(index: int, **fields: Any) -> Object:
    groups = [dict(each) for each in RUNNING["spec"]["extraWorkerGroups"]]
    groups[index] |= fields
    return changed(extraWorkerGroups=groups)


@pytest.mark.parametrize("path", PINNED)
def test_what_a_worker_read_once_is_fixed(running: Jobs, path: str) -> None:
    said = running.complaint_of_change(changed(**OTHER[path]))
    assert has(said, f"spec.{path}: %cannot be changed {WHILE_IT_RUNS}")


@pytest.mark.parametrize(
    ("field", "index"),
    [(field, index) for field in PINNED_IN_GROUPS for index in (0, 1)],
)
def test_the_same_in_groups(running: Jobs, field: str, index: int) -> None:
    said = running.complaint_of_change(changed_group(index, **OTHER[field]))
    if field == "template" and index == 1:
        assert not said  # it is not a change
        other = {"spec": {"containers": [{**TEMPLATE["spec"]["containers"][0], "image": "b"}]}}
        said = running.complaint_of_change(changed_group(index, template=other))
    assert has(said, f"only replicas, minReplicas and maxReplicas can be changed {WHILE_IT_RUNS}")


@pytest.mark.parametrize(
    "groups",
    [
        pytest.param([], id="removed"),
        pytest.param([*RUNNING["spec"]["extraWorkerGroups"], {**SPOT, "name": "new"}], id="added"),
        pytest.param([{**SPOT, "name": "new"}] * 2, id="renamed"),
    ],
)
def test_groups_stay(running: Jobs, groups: list[Object]) -> None:
    said = running.complaint_of_change(changed(extraWorkerGroups=groups))
    assert "spec.extraWorkerGroups" in said


@pytest.mark.parametrize("spec", FREE.values(), ids=FREE)
def test_what_reaches_a_running_job_may_change(running: Jobs, spec: Object) -> None:
    assert not running.complaint_of_change(changed(**spec))


def test_the_size_of_a_group_may_change(running: Jobs) -> None:
    job = changed_group(0, replicas=3, minReplicas=1, maxReplicas=9)
    assert not running.complaint_of_change(job)


def trained(state: str) -> DDPJobStatus:
    return make_status(state=state, membership=membership_of(W0))


@pytest.mark.parametrize(
    ("spec", "status", "allowed"),
    [
        pytest.param({"suspend": True}, trained("Suspended"), True, id="suspended"),
        pytest.param({"suspend": True}, trained("Running"), False, id="not_yet_suspended"),
        pytest.param({"suspend": False}, trained("Suspended"), False, id="resumed"),
        pytest.param({"replicas": 0}, trained("Suspended"), True, id="no_workers"),
        pytest.param({}, None, True, id="new"),
        pytest.param({}, make_status(state="Stalled"), True, id="never_trained"),
        pytest.param({}, trained("Stalled"), False, id="trained"),
        pytest.param({}, make_status(state="Failed"), False, id="failed"),
        pytest.param({}, make_status(state="Complete"), False, id="complete"),
    ],
)
def test_a_job_whose_pods_never_trained_may_change_in_everything(
    jobs: Jobs, spec: Object, status: DDPJobStatus | None, allowed: bool
) -> None:
    jobs.create(build_job(spec))
    if status is not None:
        jobs.write_status(status)
    other = build_job({**spec, "image": "other", "gpusPerWorker": 2, **group()})
    assert (jobs.complaint_of_change(other) == "") is allowed


def test_a_stricter_crd_leaves_old_jobs_writable(apiserver: ControlPlane, jobs: Jobs) -> None:
    """What an older CRD accepted: its status is written and its size changes."""
    name = "old." + "x" * 50
    long_name = {"name": "group-of-tomorrow", "replicas": 1}
    old = build_job({"extraWorkerGroups": [long_name]}, name)
    strict = apiserver.get(DEFINITION)
    lax = copy.deepcopy(strict)
    schema = lax["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    rules = schema["x-kubernetes-validations"]
    schema["x-kubernetes-validations"] = [
        each for each in rules if each.get("fieldPath") != ".metadata.name"
    ]
    assert len(rules) - len(schema["x-kubernetes-validations"]) == 2

    def put(definition: Object) -> None:
        version = apiserver.get(DEFINITION)["metadata"]["resourceVersion"]
        metadata = {**definition["metadata"], "resourceVersion": version}
        apiserver.send("PUT", DEFINITION, {**definition, "metadata": metadata})

    put(lax)
    try:
        eventually(lambda: not jobs.complaint(old), "the older CRD is in force")
        jobs.create(old)
    finally:
        put(strict)
    other = build_job({"extraWorkerGroups": [long_name]}, name + "y")
    eventually(lambda: jobs.complaint(other), "the newer CRD is in force")
    jobs.write_status(TRAINS, name)
    apiserver.send("PATCH", f"{jobs.path}/{name}", {"spec": {"replicas": 1, "suspend": True}})
