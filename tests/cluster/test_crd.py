"""The CRD and a real API server: what it accepts and what it refuses, in which words.

What the model says of the same jobs is in tests/operator/api/test_refused.py.
"""

from __future__ import annotations

import json

import pytest
import yaml

from cluster.conftest import CRD, DEFINITION
from cluster.control_plane import ROOT, ControlPlane, eventually
from cluster.jobs import DRY, Jobs
from support.refused import (
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
    has,
    ids,
)


@pytest.fixture(scope="module")
def dry(apiserver: ControlPlane, crd: None) -> Jobs:
    """For what stores nothing."""
    return Jobs(apiserver, "default")


# --- the definition ------------------------------------------------------------------------------


def test_the_definition_is_served_without_reservations(apiserver: ControlPlane, crd: None) -> None:
    found = apiserver.get(DEFINITION)
    conditions = {each["type"]: each["status"] for each in found["status"]["conditions"]}
    assert conditions == {"NamesAccepted": "True", "Established": "True"}
    assert found["spec"] == {  # nothing was dropped or put in its place
        **yaml.safe_load(CRD.read_text())["spec"],
        "conversion": {"strategy": "None"},
    }


def test_kubectl_explains_fields_with_their_defaults(apiserver: ControlPlane, crd: None) -> None:
    told = ""

    def explained() -> bool:
        nonlocal told
        told = apiserver.attempt("explain", "ddpjobs.spec.elastic.joinPolicy").stdout
        return "Default: Auto." in told

    eventually(explained, "published, a moment after it is served", lambda: told)
    assert "ENUM:" in told


# --- what is accepted ----------------------------------------------------------------------------


def test_kubectl_applies_the_examples(dry: Jobs) -> None:
    examples = sorted(ROOT.glob("examples/*/ddpjob*.yaml"))
    assert examples
    files = [word for path in examples for word in ("--filename", str(path))]
    told = dry.kubectl("apply", "--dry-run=server", "--validate=strict", *files).splitlines()
    assert [line for line in told if not line.endswith(" created (server dry run)")] == []
    assert len(told) >= len(examples)


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
    stored = dry.create(job, DRY)["spec"]
    assert stored.pop("suspend") is spec.get("suspend", False)
    assert stored == {key: job["spec"][key] for key in job["spec"] if key != "suspend"}
    accepted_by_model(job)


# --- what is refused -----------------------------------------------------------------------------


@ids([*BOTH, *ONLY_THE_API_SERVER])
def test_the_api_server_refuses_and_says_what_to_do(dry: Jobs, row: Row) -> None:
    said = dry.complaint(row.job)
    assert has(said, row.says), said


@ids(ONLY_THE_MODEL)
def test_the_api_server_accepts_what_only_the_model_refuses(dry: Jobs, row: Row) -> None:
    assert not dry.complaint(row.job)


def test_kubectl_knows_no_other_version(dry: Jobs) -> None:
    job = {**build_job({}), "apiVersion": "ddpjob.io/v1"}
    done = dry.server.attempt("create", "--dry-run=server", "-f", "-", stdin=json.dumps(job))
    assert 'no matches for kind "DDPJob" in version "ddpjob.io/v1"' in done.stderr
    accepted_by_model(job)  # jobfile.py asks for the version, and of files only


def test_nulls_are_not_stored(jobs: Jobs) -> None:
    job = build_job({})
    job["spec"] |= {"elastic": None, "template": None}
    assert not {"elastic", "template"} & set(jobs.create(job)["spec"])
