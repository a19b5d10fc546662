"""The CRD and a real API server: what it accepts, refuses, shows, and lets change."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from builders import NOW, make_status
from cluster.conftest import CRD
from cluster.control_plane import ROOT, ApiServer
from cluster.refused import (
    BOTH,
    FROM,
    ONLY_THE_API_SERVER,
    ONLY_THE_MODEL,
    SPOT,
    TEMPLATE,
    Object,
    Row,
    accepted_by_model,
    build_job,
    group,
)
from ddpjob_operator.api import DDPJob
from ddpjob_operator.conditions import condition
from ddpjob_operator.names import ConditionType, Reason
from ddpjob_operator.problems import problems
from ddpjob_operator.rules import (
    PINNED,
    PINNED_IN_GROUPS,
    WHILE_IT_RUNS,
    Placed,
    build_rules,
)
from ddpjob_operator.status import (
    DDPJobStatus,
    GroupStatus,
    MembershipStatus,
    ProgressStatus,
    RestartsStatus,
    SnapshotStatus,
)

PATIENCE_SECONDS = 60.0
RULES = [placed for placed in build_rules() if "oldSelf" not in placed[1]["rule"]]
DRY = ("--dry-run=server", "--validate=strict")


class Jobs:
    """The DDPJobs of one namespace."""

    def __init__(self, server: ApiServer, namespace: str) -> None:
        self.server = server
        self.here = ("--namespace", namespace)

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        return self.server.kubectl(*arguments, *self.here, stdin=stdin)

    def create(self, job: Object, *options: str) -> Object:
        """The job as it is stored."""
        told = self.kubectl("create", *options, "-o", "json", "-f", "-", stdin=json.dumps(job))
        stored: Object = json.loads(told)
        return stored

    def complaint(self, verb: str, *options: str, job: Object) -> str:
        """What is said when it is refused; empty when it is not."""
        arguments = (verb, *options, *self.here, "-f", "-")
        done = self.server.attempt(*arguments, stdin=json.dumps(job))
        return done.stderr if done.returncode else ""

    def write_status(self, status: DDPJobStatus, name: str = "digits") -> Object:
        patch = json.dumps({"status": status.to_json()})
        options = ("--subresource=status", "--type=merge", "-o", "json")
        stored: Object = json.loads(self.kubectl("patch", "ddp", name, *options, "-p", patch))
        return stored

    def names(self, *options: str) -> list[str]:
        return self.kubectl("get", "ddp", *options, "-o", "name").split()


@pytest.fixture
def jobs(apiserver: ApiServer, namespace: str) -> Jobs:
    return Jobs(apiserver, namespace)


@pytest.fixture(scope="module")
def dry(apiserver: ApiServer, crd: None) -> Jobs:
    """For what stores nothing."""
    return Jobs(apiserver, "default")


def has(text: str, words: str) -> bool:
    """Whether the words are in the text; `%` stands for what the API server puts between them."""
    return re.search(".*".join(map(re.escape, words.split("%"))), text) is not None


def ids(rows: list[Row]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("row", [pytest.param(row, id=row.id) for row in rows])


# --- the definition ------------------------------------------------------------------------------


def test_the_definition_is_served_without_reservations(apiserver: ApiServer, crd: None) -> None:
    found = json.loads(apiserver.kubectl("get", "-f", str(CRD), "-o", "json"))
    conditions = {each["type"]: each["status"] for each in found["status"]["conditions"]}
    assert conditions == {"NamesAccepted": "True", "Established": "True"}
    assert found["spec"] == {  # nothing was dropped or put in its place
        **yaml.safe_load(CRD.read_text())["spec"],
        "conversion": {"strategy": "None"},
    }


def test_kubectl_explains_fields_with_their_defaults(apiserver: ApiServer, crd: None) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    explain = ("explain", "ddpjobs.spec.elastic.joinPolicy")
    while "Default: Auto." not in (told := apiserver.attempt(*explain).stdout):
        assert time.monotonic() < deadline, told  # published a moment after it is served
    assert "ENUM:" in told


# --- what is accepted ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", sorted(ROOT.glob("examples/*/ddpjob*.yaml")), ids=lambda path: path.parent.name
)
def test_the_examples_are_accepted(dry: Jobs, path: Any) -> None:
    dry.kubectl("create", *DRY, "-f", str(path))


ACCEPTED: dict[str, Object] = {
    "shortest": {},
    "groups": {"extraWorkerGroups": [SPOT, {**SPOT, "name": "a100", "gpusPerWorker": 4}]},
    "no_workers_is_paused": {"replicas": 0, "minReplicas": 2},
    "suspended_below_minimum": {"minReplicas": 3, "suspend": True},
    "suspended_groups_below_minimum": {"suspend": True, **group(minReplicas=3)},
    "empty_main_group": {"replicas": 0, **group()},
    "template": FROM,
    "template_with_empty_lists": {**FROM, "args": [], "env": []},
    "template_of_a_group": group(template=TEMPLATE),
    "gpus_and_another_limit": {"gpusPerWorker": 1, "resources": {"limits": {"cpu": 1}}},
    "automatic_processes": {"processesPerWorker": "auto"},
    "four_processes": {"processesPerWorker": 4},
    "spelled_out_defaults": {"launcher": "torchrun", "gpuResource": "nvidia.com/gpu"},
    "value_from": {"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}]},
}


@pytest.mark.parametrize("spec", ACCEPTED.values(), ids=ACCEPTED)
def test_api_server_and_model_accept(dry: Jobs, spec: Object) -> None:
    job = build_job(spec)
    stored = dry.create(job, *DRY)["spec"]
    assert stored.pop("suspend") is spec.get("suspend", False)
    assert stored == {key: job["spec"][key] for key in job["spec"] if key != "suspend"}
    accepted_by_model(job)


# --- what is refused -----------------------------------------------------------------------------


@ids(BOTH)
def test_the_api_server_refuses_and_says_what_to_do(dry: Jobs, row: Row) -> None:
    assert has(dry.complaint("create", *DRY, job=row.job), row.says)


@ids(BOTH)
def test_the_model_refuses_the_same(row: Row) -> None:
    said = complaints(row.job)
    assert [text for text in said if has(text, row.model or row.says.replace(": %", ": "))], said


@ids(ONLY_THE_API_SERVER)
def test_only_the_api_server_refuses(dry: Jobs, row: Row) -> None:
    assert row.why
    assert has(dry.complaint("create", *DRY, job=row.job), row.says)
    accepted_by_model(row.job)


@ids(ONLY_THE_MODEL)
def test_only_the_model_refuses(dry: Jobs, row: Row) -> None:
    assert row.why
    assert not dry.complaint("create", *DRY, job=row.job)
    said = complaints(row.job)
    assert [text for text in said if has(text, row.says)], said


@pytest.mark.parametrize("placed", RULES, ids=lambda placed: placed[0] + placed[1]["rule"][:40])
def test_every_rule_has_a_row(placed: Placed) -> None:
    path, rule = placed
    place = (path + rule.get("fieldPath", "")).removeprefix(".").replace(".*", "[0]")
    words = rule.get("message") or json.JSONDecoder().raw_decode(rule["messageExpression"])[0]
    pattern = re.escape(f"{place}: %{words}").replace("%s", ".*")
    rows = (*BOTH, *ONLY_THE_API_SERVER)
    assert [row.id for row in rows if re.fullmatch(pattern, row.says)], pattern


def complaints(job: Object) -> list[str]:
    with pytest.raises(ValidationError) as caught:
        accepted_by_model(job)
    return [str(problem) for problem in problems(caught.value)]


def test_nulls_are_not_stored(jobs: Jobs) -> None:
    job = build_job({})
    job["spec"] |= {"elastic": None, "template": None}
    assert not {"elastic", "template"} & set(jobs.create(job)["spec"])


# --- what may change -----------------------------------------------------------------------------

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
    "scheduling": {"scheduling": {"topologyKey": "zone"}},
    "snapshot": {"snapshot": {"everySteps": 7}},
    "elastic.orphanSeconds": {"elastic": {"orphanSeconds": 90}},
    "elastic.warmStart": {"elastic": {"warmStart": False}},
}
FREE: dict[str, Object] = {
    "replicas": {"replicas": 3},
    "minReplicas": {"minReplicas": 2},
    "maxReplicas": {"maxReplicas": 5},
    "suspend": {"suspend": True},
    "activeDeadlineSeconds": {"activeDeadlineSeconds": 60},
    "failurePolicy": {"failurePolicy": {"maxRestarts": {"application": 9}}},
    "elastic": {"elastic": {"joinPolicy": "Never", "settleSeconds": 1, "heartbeatSeconds": 5}},
    "spelled_out_defaults": {"launcher": "torchrun", "gpuResource": "nvidia.com/gpu"},
    "order_of_groups": {"extraWorkerGroups": RUNNING["spec"]["extraWorkerGroups"][::-1]},
}


@pytest.fixture(scope="module")
def running(apiserver: ApiServer, crd: None) -> Jobs:
    """A job that runs, for tests that do not change it."""
    jobs = Jobs(apiserver, "default")
    jobs.create(RUNNING)
    jobs.write_status(make_status(state="Running"))
    return jobs


def changed(**spec: Any) -> Object:
    return {**RUNNING, "spec": {**RUNNING["spec"], **spec}}


def changed_group(index: int, **fields: Any) -> Object:
    groups = [dict(each) for each in RUNNING["spec"]["extraWorkerGroups"]]
    groups[index] |= fields
    return changed(extraWorkerGroups=groups)


@pytest.mark.parametrize("path", PINNED)
def test_what_a_worker_read_once_is_fixed(running: Jobs, path: str) -> None:
    said = running.complaint("replace", *DRY, job=changed(**OTHER[path]))
    assert has(said, f"spec.{path}: %cannot be changed {WHILE_IT_RUNS}")


@pytest.mark.parametrize(
    ("field", "index"),
    [(field, index) for field in PINNED_IN_GROUPS for index in (0, 1)],
)
def test_the_same_in_groups(running: Jobs, field: str, index: int) -> None:
    said = running.complaint("replace", *DRY, job=changed_group(index, **OTHER[field]))
    if field == "template" and index == 1:
        assert not said  # it is no change
        other = {"spec": {"containers": [{**TEMPLATE["spec"]["containers"][0], "image": "b"}]}}
        said = running.complaint("replace", *DRY, job=changed_group(index, template=other))
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
    said = running.complaint("replace", *DRY, job=changed(extraWorkerGroups=groups))
    assert "spec.extraWorkerGroups" in said


@pytest.mark.parametrize("spec", FREE.values(), ids=FREE)
def test_what_reaches_a_running_job_may_change(running: Jobs, spec: Object) -> None:
    assert not running.complaint("replace", *DRY, job=changed(**spec))


def test_the_size_of_a_group_may_change(running: Jobs) -> None:
    job = changed_group(0, replicas=3, minReplicas=1, maxReplicas=9)
    assert not running.complaint("replace", *DRY, job=job)


@pytest.mark.parametrize(
    ("spec", "state", "allowed"),
    [
        pytest.param({"suspend": True}, "Suspended", True, id="suspended"),
        pytest.param({"suspend": True}, "Running", False, id="not_yet_suspended"),
        pytest.param({"suspend": False}, "Suspended", False, id="resumed"),
        pytest.param({"replicas": 0}, "Suspended", True, id="no_workers"),
    ],
)
def test_a_job_without_workers_may_change_in_everything(
    jobs: Jobs, spec: Object, state: str, allowed: bool
) -> None:
    jobs.create(build_job(spec))
    jobs.write_status(make_status(state=state))
    other = build_job({**spec, "image": "other", "gpusPerWorker": 2, **group()})
    assert (jobs.complaint("replace", job=other) == "") is allowed


# --- scale ---------------------------------------------------------------------------------------


def test_kubectl_scales_the_main_group_within_its_bounds(jobs: Jobs) -> None:
    jobs.create(build_job({"minReplicas": 1, "maxReplicas": 4}))
    for size in ("3", "0"):
        jobs.kubectl("scale", "ddp/digits", "--replicas", size)
        assert jobs.kubectl("get", "ddp", "digits", "-o", "jsonpath={.spec.replicas}") == size
    done = jobs.server.attempt("scale", "ddp/digits", "--replicas", "9", *jobs.here)
    assert has(done.stderr, "is 9, above maxReplicas (4); lower it or raise maxReplicas")


def test_autoscalers_see_size_and_selector(jobs: Jobs) -> None:
    jobs.create(build_job({}))
    selector = "ddpjob.io/job=digits,ddpjob.io/group=worker"
    jobs.write_status(make_status(replicas=1, selector=selector))
    scale = ("get", "ddp", "digits", "--subresource=scale", "-o", "json")
    found = json.loads(jobs.kubectl(*scale))
    assert found["spec"] == {"replicas": 2}
    assert found["status"] == {"replicas": 1, "selector": selector}


# --- what is shown -------------------------------------------------------------------------------

STATUS = make_status(
    state="Running",
    observed_generation=1,
    conditions=(
        condition(ConditionType.RUNNING, True, Reason.TRAINING).model_copy(
            update={"observed_generation": 1, "last_transition_time": NOW}
        ),
    ),
    membership=MembershipStatus(
        id="1.1.3", workers=("digits-worker-000-1",), world_size=6, since=NOW, cause="lost"
    ),
    restarts=RestartsStatus(application=1, infrastructure=2, total=3),
    overdue_workers=("digits-worker-001-2",),
    stuck=("digits-worker-000-1: a process did not come out of a collective",),
    unreachable=("digits-worker-000-1 cannot reach digits-worker-001-1",),
    warned=("SnapshotNotShared",),
    progress=ProgressStatus(step=40, total_steps=900, metrics={"loss": 0.5}),
    snapshot=SnapshotStatus(
        step=30,
        skipped=2,
        trouble="training stands still",
        files_kept_at=NOW,
        files_trouble="digits-worker-000-1: no space",
    ),
    groups=(GroupStatus(name="worker", replicas=4, placed=3, ready=2),),
    ready="2/4",
    replicas=3,
    selector="ddpjob.io/job=digits,ddpjob.io/group=worker",
    completion_time=NOW,
    replace_after=NOW,
)


def test_the_operators_status_is_stored_whole(jobs: Jobs) -> None:
    jobs.create(build_job({}))
    stored = jobs.write_status(STATUS)
    assert stored["status"] == STATUS.to_json()
    assert DDPJob.model_validate(stored, by_name=False).status == STATUS
    missing = set(DDPJobStatus.model_fields) - set(STATUS.model_fields_set)
    assert not missing, "this test is to write every field of the status"


@pytest.mark.parametrize(
    ("options", "columns"),
    [
        ((), {"STATE": "Running", "READY": "2/4", "WORLD": "6", "MEMBERSHIP": "1.1.3"}),
        ((), {"NAME": "digits", "RESTARTS": "3"}),
        (("-o", "wide"), {"FAILURES": "1", "LOSSES": "2", "CAUSE": "lost", "STEP": "40"}),
        (("-o", "wide"), {"SNAPSHOT": "30", "EPOCH": "1", "STATE": "Running"}),
    ],
)
def test_kubectl_shows(jobs: Jobs, options: tuple[str, ...], columns: dict[str, str]) -> None:
    jobs.create(build_job({}))
    jobs.write_status(STATUS)
    heads, values = (line.split() for line in jobs.kubectl("get", "ddp", *options).splitlines())
    found = dict(zip(heads, values, strict=True))
    assert columns.items() <= found.items()
    assert re.fullmatch(r"\d+s", found["AGE"])
    assert ("STEP" in found) is bool(options)


def test_jobs_are_selected_by_state_and_suspend(jobs: Jobs) -> None:
    jobs.create(build_job({}, name="runs"))
    jobs.create(build_job({"suspend": True}, name="waits"))
    jobs.write_status(make_status(state="Running"), "runs")
    assert jobs.names("--field-selector=spec.suspend=false") == ["ddpjob.ddpjob.io/runs"]
    assert jobs.names("--field-selector=spec.suspend=true") == ["ddpjob.ddpjob.io/waits"]
    assert jobs.names("--field-selector=status.state=Running") == ["ddpjob.ddpjob.io/runs"]


def test_jobs_are_among_all(jobs: Jobs) -> None:
    jobs.create(build_job({}))
    assert "ddpjob.ddpjob.io/digits" in jobs.kubectl("get", "all", "-o", "name")
