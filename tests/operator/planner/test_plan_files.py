"""What is told of the files that a script saves by itself: kept, not kept, seen by nobody else."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ddpjob_operator.api.spec import DDPJob
from ddpjob_operator.api.status import DDPJobStatus, SnapshotStatus
from ddpjob_operator.planner.observed import Observed
from ddpjob_operator.planner.planner import Plan, plan
from ddpjob_operator.planner.status.storage_warnings import NOT_SHARED, SILENT_SECONDS
from ddpjob_protocol.messages.control import FileSyncReport, Report, ServiceState
from support.builders import NOW, make_report
from support.planning import UP, W0, W1, events_of, told
from support.rawpods import make_cluster_job

REPORT = make_report(W0, W1)
LATER = NOW + timedelta(seconds=SILENT_SECONDS)
ROUND = REPORT.memberships[0]


def decide(job: DDPJob, report: Report = REPORT, now: datetime = LATER, **observed: Any) -> Plan:
    return plan(Observed(job, (W0, W1), UP, report, **observed), now)


def job_of(**spec: Any) -> DDPJob:
    job = make_cluster_job(**spec)
    status = DDPJobStatus(rendezvous_term=1, observed_rendezvous_term=1, start_time=NOW)
    return job.model_copy(update={"status": status})


def template(*volumes: dict[str, Any]) -> dict[str, Any]:
    container = {"name": "trainer", "image": "a", "command": ["torchrun", "train.py"]}
    return {"template": {"spec": {"containers": [container], "volumes": list(volumes)}}}


def warnings(planned: Plan) -> list[str]:
    return [
        text for name, text, warns in events_of(planned) if name == "SnapshotNotShared" and warns
    ]


def test_it_is_told_once_when_it_is_certain() -> None:
    job = job_of()
    planned = decide(job)
    assert warnings(planned) == [NOT_SHARED]
    assert NOT_SHARED in told(planned.status, "Running")[2]
    job = job.model_copy(update={"status": planned.status})
    silent = dataclasses.replace(REPORT, state=ServiceState.WAITING, reason="backing off")
    for report in (REPORT, silent, REPORT):
        planned = decide(job, report, LATER + timedelta(hours=1))
        assert warnings(planned) == []
        job = job.model_copy(update={"status": planned.status})


def test_it_ends_when_the_script_reports_snapshots() -> None:
    job = job_of()
    job = job.model_copy(update={"status": decide(job).status})
    assert [each.reason for each in job.status.warnings] == ["SnapshotNotShared"]
    planned = decide(job, dataclasses.replace(REPORT, snapshot_step=5))
    assert planned.status.warnings == ()


def test_before_that_it_is_looked_at_again_in_time() -> None:
    planned = decide(job_of(), now=NOW + timedelta(seconds=100))
    assert warnings(planned) == []
    assert NOT_SHARED not in told(planned.status, "Running")[2]
    assert planned.requeue_after == SILENT_SECONDS - 100


CLAIM = {"persistentVolumeClaim": {"claimName": "c"}}


@pytest.mark.parametrize(
    ("spec", "warns"),
    [
        ({}, True),
        ({"replicas": 1}, False),
        ({"replicas": 1, "maxReplicas": 2}, True),
        ({"replicas": 1, "extraWorkerGroups": [{"name": "spot", "replicas": 1}]}, True),
        ({"snapshot": {"files": ["snapshot.pt"]}}, False),
        ({"snapshot": {"everySteps": 5}}, True),
        ({"snapshot": {"storage": CLAIM}}, False),
        ({"snapshot": {"storage": {"emptyDir": {}}}}, True),
        (template({"name": "data", "nfs": {"server": "s", "path": "/"}}), False),
        (template({"name": "tmp", "emptyDir": {}}, {"name": "c", "configMap": {"name": "c"}}), True),
        (template({"name": "tmp", "emptyDir": {}}, {"name": "d", **CLAIM}), False),
    ],
    ids=[
        "nothing", "one_worker", "may_grow", "another_group", "files", "other_snapshot_fields",
        "claim", "own_disk", "nfs_in_template", "own_disks_in_template", "claim_in_template",
    ],
)  # fmt: skip
def test_only_where_nobody_else_can_see_the_file(spec: dict[str, Any], warns: bool) -> None:
    if "template" in spec:
        spec = {"image": None, "command": None, **spec}
    assert bool(warnings(decide(job_of(**spec)))) == warns


@pytest.mark.parametrize(
    "changes",
    [
        {"live": True},
        {"snapshot_step": 5},
        {"memberships": (dataclasses.replace(ROUND, resumed_step=0),)},
        {"state": ServiceState.WAITING},
        {"memberships": (ROUND, dataclasses.replace(ROUND, id="1.1.2", since=LATER.timestamp()))},
    ],
    ids=["L2", "L1", "L1_that_found_no_snapshot", "not_running", "just_begun_again"],
)
def test_not_where_the_script_tells_of_snapshots_or_had_no_time_to(changes: dict[str, Any]) -> None:
    assert warnings(decide(job_of(), dataclasses.replace(REPORT, **changes))) == []


def test_not_where_all_workers_see_one_file_system() -> None:
    assert warnings(decide(job_of(), one_file_system=True)) == []


# --- files that are kept ----------------------------------------------------------------------------

FILES = {"snapshot": {"files": ["snapshot.pt"]}}
AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def test_status_says_when_a_copy_was_last_safe() -> None:
    report = dataclasses.replace(REPORT, files=FileSyncReport(AT.timestamp() + 0.25, 100))
    planned = decide(job_of(**FILES), report)
    assert planned.status.snapshot == SnapshotStatus(files_synced_at=AT)
    assert planned.status.to_json()["snapshot"] == {"filesSyncedAt": "2026-01-02T03:04:05Z"}
    job = job_of(**FILES).model_copy(update={"status": planned.status})
    again = decide(job, dataclasses.replace(REPORT, files=FileSyncReport()))
    assert again.status.snapshot == SnapshotStatus(files_synced_at=AT)


def test_copies_that_become_newer_are_no_news() -> None:
    report = dataclasses.replace(REPORT, files=FileSyncReport(5.0, 7))
    newer = dataclasses.replace(report, files=FileSyncReport(6.0, 8))
    assert newer.without_progress() == report.without_progress(), "no news, but progress"
    assert report.without_progress() != REPORT.without_progress()
