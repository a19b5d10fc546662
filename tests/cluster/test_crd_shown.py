"""The CRD and a real API server: what kubectl and autoscalers see of a job."""

from __future__ import annotations

import re

from cluster.jobs import Jobs
from ddpjob_operator.api.constants import ConditionType, Reason
from ddpjob_operator.api.spec import DDPJob
from ddpjob_operator.api.status import (
    DDPJobStatus,
    GroupStatus,
    HistoryEntry,
    MembershipStatus,
    NodeFailures,
    ProgressStatus,
    RendezvousFailures,
    RestartsStatus,
    SilentWorkerStatus,
    SnapshotStatus,
    WarningStatus,
    WorkerFailures,
)
from ddpjob_operator.planner.status.conditions import condition
from support.builders import NOW, make_status
from support.refused import build_job, has

STATUS = make_status(
    state="Running",
    observed_generation=1,
    agent_image="ddpjob/agent:0.1.0",
    conditions=(
        condition(ConditionType.RUNNING, True, Reason.TRAINING).model_copy(
            update={"observed_generation": 1, "last_transition_time": NOW}
        ),
    ),
    membership=MembershipStatus(
        id="1.1.3", workers=("digits-worker-000-1",), world_size=6, since=NOW, cause="lost"
    ),
    message="2 workers",
    history=(
        HistoryEntry(
            membership="1.1.3",
            cause="lost",
            message="lost b",
            ended=("a: OOMKilled",),
            since=NOW,
            workers=1,
            world_size=6,
            stall_seconds=1.5,
            first_step=31,
            resumed_step=30,
            repeated_steps=9,
        ),
    ),
    restarts=RestartsStatus(application=1, infrastructure=2, total=3, recent=(NOW,)),
    warnings=(
        WarningStatus(
            reason="Unreachable", message="cannot reach b", worker="digits-worker-000-1", since=NOW
        ),
        WarningStatus(reason="ProcessStuck", message="hung", since=NOW, ongoing=False, count=2),
    ),
    progress=ProgressStatus(
        step=40,
        total_steps=900,
        display="40/900",
        steps_per_second=1.2,
        estimated_completion=NOW,
        metrics={"loss": 0.5},
    ),
    snapshot=SnapshotStatus(
        step=30,
        skipped=2,
        files_synced_at=NOW,
    ),
    groups=(GroupStatus(name="worker", replicas=4, scheduled=3, ready=2),),
    ready="2/4",
    replicas=3,
    selector="ddpjob.io/job=digits,ddpjob.io/group=worker",
    completion_time=NOW,
    replace_after=NOW,
    worker_failures=(
        WorkerFailures(
            group="worker",
            index=1,
            worker="digits-worker-001-1",
            count=2,
            spent=1,
            times=(NOW,),
            reason="OutOfMemory",
            exit_code=137,
            at=NOW,
            retry_at=NOW,
            tail="Killed",
        ),
    ),
    node_failures=(
        NodeFailures(
            node="a", count=2, at=NOW, process_failed_at=NOW, workers=("w-0",), avoided=True
        ),
    ),
    rendezvous_failures=RendezvousFailures(
        term=1, count=1, message="it is not ready", node="gpu-7"
    ),
    silent_workers=(SilentWorkerStatus(name="digits-worker-001-1", since=NOW),),
)


def test_the_operators_status_is_stored_whole(jobs: Jobs) -> None:
    jobs.create(build_job({}))
    stored = jobs.write_status(STATUS)
    assert stored["status"] == STATUS.to_json()
    assert DDPJob.model_validate(stored, by_name=False).status == STATUS
    missing = set(DDPJobStatus.model_fields) - set(STATUS.model_fields_set)
    assert not missing, "this test is to write every field of the status"


def test_kubectl_waits_for_a_condition_and_shows_columns(jobs: Jobs) -> None:
    jobs.create(build_job({}))
    jobs.write_status(STATUS)
    jobs.kubectl("wait", "--for=condition=Running", "ddp/digits", "--timeout=60s")
    short, wide = columns(jobs), columns(jobs, "-o", "wide")
    always = {"NAME": "digits", "STATE": "Running", "READY": "2/4", "WORLD": "6"}
    always |= {"PROGRESS": "40/900", "RESTARTS": "3"}
    only_wide = {"CAUSE": "lost", "SNAPSHOT": "30", "MESSAGE": "2 workers"}
    assert always.items() <= short.items()
    assert {**always, **only_wide}.items() <= wide.items()
    assert not only_wide.keys() & short.keys()
    assert re.fullmatch(r"\d+s", short["AGE"])


def columns(jobs: Jobs, *options: str) -> dict[str, str]:
    """What kubectl shows of the only job, by the heads of the columns."""
    table = jobs.kubectl("get", "ddp", *options).splitlines()
    heads, values = (re.split(r"\s{2,}", line.strip()) for line in table)
    return dict(zip(heads, values, strict=True))


def test_kubectl_shows_jobs_among_all(jobs: Jobs) -> None:
    jobs.create(build_job({}))
    assert "ddpjob.ddpjob.io/digits" in jobs.kubectl("get", "all", "-o", "name")


def test_kubectl_scales_the_main_group_within_its_bounds(jobs: Jobs) -> None:
    jobs.create(build_job({"minReplicas": 1, "maxReplicas": 4}))
    for size in (3, 0):
        jobs.kubectl("scale", "ddp/digits", f"--replicas={size}")
        assert jobs.get()["spec"]["replicas"] == size
    scale = ("scale", "ddp/digits", "--replicas=9", "--namespace", jobs.namespace)
    done = jobs.server.attempt(*scale)
    assert has(done.stderr, "is 9, above maxReplicas (4); lower it or raise maxReplicas")


def test_autoscalers_see_size_and_selector(jobs: Jobs) -> None:
    jobs.create(build_job({}))
    selector = "ddpjob.io/job=digits,ddpjob.io/group=worker"
    jobs.write_status(make_status(replicas=1, selector=selector))
    found = jobs.get("/scale")
    assert found["spec"] == {"replicas": 2}
    assert found["status"] == {"replicas": 1, "selector": selector}


def test_jobs_are_selected_by_state_and_suspend(jobs: Jobs) -> None:
    jobs.create(build_job({}, name="runs"))
    jobs.create(build_job({"suspend": True}, name="waits"))
    jobs.write_status(make_status(state="Running"), "runs")
    assert jobs.names("spec.suspend=false") == ["runs"]
    assert jobs.names("spec.suspend=true") == ["waits"]
    assert jobs.names("status.state=Running") == ["runs"]
