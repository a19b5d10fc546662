"""What is read from rendezvous pods and Services, and to whom a pod belongs."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from typing import Any

import pytest

from ddpjob_operator.api.spec.pinned_fields import revision
from ddpjob_operator.manifests.build import build_service
from ddpjob_operator.manifests.parse import parse_child, parse_pod
from ddpjob_operator.planner.observed import Phase, Rendezvous, Worker
from support.keys import KEY
from support.rawpods import (
    JSON,
    NODE,
    UID,
    ended,
    make_cluster_job,
    phase,
    raw_pod,
    rendezvous_manifest,
    running,
    the_worker,
    waiting,
    worker_manifest,
)

READY = {"type": "Ready", "status": "True"}
LOW = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 80488Ki. "
NOT_FOUND = 'failed to pull and unpack image "docker.io/my/operator:1": not found'
BACK_OFF = "back-off 5m0s restarting failed container=rendezvous pod=digits-rendezvous-3"

# Status, whether it is being deleted; what is read, and whether it lives.
SERVICES: list[tuple[str, JSON, bool, Rendezvous, bool]] = [
    ("new", {"phase": "Pending"}, False, Rendezvous(3), True),
    (
        "up",
        {"phase": "Running", "conditions": [READY]},
        False,
        Rendezvous(3, ready=True),
        True,
    ),
    (
        "not_ready",
        {"phase": "Running", "conditions": [{**READY, "status": "False"}]},
        False,
        Rendezvous(3),
        True,
    ),
    (
        "runs_on_a_lost_node",
        {
            "phase": "Running",
            "conditions": [
                {**READY, "status": "False", "lastTransitionTime": "2026-01-02T03:04:05Z"}
            ],
            "containerStatuses": [
                {"name": "rendezvous", "state": {"running": {}}, "restartCount": 2}
            ],
        },
        False,
        Rendezvous(
            3, running=True, restarts=2, not_ready_since=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
        ),
        True,
    ),
    (
        "image",
        phase("Pending", waiting("ErrImagePull", NOT_FOUND, name="rendezvous"), init=()),
        False,
        Rendezvous(3, reason="ErrImagePull", message=NOT_FOUND),
        True,
    ),
    (
        "started_again_and_again",
        phase(
            "Running",
            waiting(
                "CrashLoopBackOff",
                BACK_OFF,
                name="rendezvous",
                lastState={"terminated": {"exitCode": 137, "reason": "OOMKilled"}},
            ),
            init=(),
        ),
        False,
        Rendezvous(3, reason="OOMKilled", message="exit code 137"),
        True,
    ),
    (
        "started_again_and_nobody_knows_why",
        phase("Running", waiting("CrashLoopBackOff", BACK_OFF, name="rendezvous"), init=()),
        False,
        Rendezvous(3, reason="CrashLoopBackOff", message=BACK_OFF),
        True,
    ),
    (
        "superseded",
        phase(
            "Running",
            waiting(
                "CrashLoopBackOff",
                BACK_OFF,
                name="rendezvous",
                lastState={"terminated": {"exitCode": 5, "reason": "Error", "message": "newer"}},
            ),
            init=(),
        ),
        False,
        Rendezvous(3, reason="Error", message="newer", superseded=True),
        True,
    ),
    (
        "superseded_and_started_again",
        phase(
            "Running",
            {**running("rendezvous"), "lastState": {"terminated": {"exitCode": 5}}},
            init=(),
        ),
        False,
        Rendezvous(3, superseded=True, running=True),
        True,
    ),
    (
        "evicted",
        {"phase": "Failed", "reason": "Evicted", "message": LOW},
        False,
        Rendezvous(3, reason="Evicted", message=LOW.strip()),
        False,
    ),
    (
        "going",
        {"phase": "Running", "conditions": [READY], "podIP": "10.0.0.3"},
        True,
        Rendezvous(3, ready=True, address="10.0.0.3"),
        False,
    ),
]


@pytest.mark.parametrize(
    ("status", "going", "expected", "live"),
    [pytest.param(*row, id=name) for name, *row in SERVICES],
)
def test_state_of_a_rendezvous_pod(
    status: JSON, going: bool, expected: Rendezvous, live: bool
) -> None:
    deletion = {"deletionTimestamp": "2026-01-02T03:04:05Z"} if going else {}
    pod = parse_pod(raw_pod(rendezvous_manifest(), status, NODE, **deletion))
    made_from = revision(make_cluster_job().spec)
    expected = dataclasses.replace(expected, revision=made_from, key=KEY.fingerprint, node="node-a")
    assert (pod.rendezvous, pod.worker) == (expected, None)
    assert (pod.live, pod.deleting) == (live, going)


def test_names_and_numbers_of_a_worker_come_back_from_its_manifest() -> None:
    job = make_cluster_job(extraWorkerGroups=[{"name": "spot-t4", "replicas": 8}])
    pod = parse_pod(raw_pod(worker_manifest(job, 7, "spot-t4"), phase("Running", running()), NODE))
    expected = Worker("digits-spot-t4-007-2", "spot-t4", 7, 2, Phase.RUNNING, NODE)
    assert pod.worker == dataclasses.replace(
        expected,
        revision=revision(job.spec),
        key=KEY.fingerprint,
        running_since=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    )
    assert (pod.namespace, pod.name, pod.uid, pod.version) == (
        "team",
        pod.worker.name,
        "a-pod",
        "42",
    )
    assert (pod.job, pod.owner, pod.role) == ("digits", UID, "worker")
    assert pod.rendezvous is None


def test_a_worker_that_is_being_deleted() -> None:
    deletion = {"deletionTimestamp": "2026-01-02T03:04:05Z", "deletionGracePeriodSeconds": 30}
    pod = parse_pod(raw_pod(worker_manifest(), phase("Running", running()), NODE, **deletion))
    assert pod.deleting
    assert not pod.live
    assert pod.worker
    assert (pod.worker.deleting, pod.worker.phase) == (True, Phase.RUNNING)


@pytest.mark.parametrize(
    "owners",
    [
        pytest.param([], id="nobody"),
        pytest.param(None, id="null"),
        pytest.param([{"kind": "DDPJob", "name": "digits", "uid": UID}], id="not_the_controller"),
    ],
)
def test_a_pod_that_no_job_controls(owners: Any) -> None:
    assert parse_pod(raw_pod(worker_manifest(), {}, ownerReferences=owners)).owner == ""


def test_a_pod_that_something_else_controls() -> None:
    ours = worker_manifest()["metadata"]["ownerReferences"]
    theirs = {"kind": "ReplicaSet", "name": "x", "uid": "theirs", "controller": True}
    owners = [{**ours[0], "controller": False}, theirs]
    assert parse_pod(raw_pod(worker_manifest(), {}, ownerReferences=owners)).owner == "theirs"


@pytest.mark.parametrize("labels", [{}, None, {"ddpjob.io/role": "other"}])
def test_a_pod_of_no_known_role_is_neither_worker_nor_service(labels: Any) -> None:
    pod = parse_pod(raw_pod(worker_manifest(), {"phase": "Running"}, labels=labels))
    assert (pod.worker, pod.rendezvous, pod.job) == (None, None, "")


def test_labels_that_somebody_has_changed() -> None:
    labels = {"ddpjob.io/role": "worker", "ddpjob.io/index": "one", "ddpjob.io/incarnation": "-1"}
    worker = the_worker(raw_pod(worker_manifest(), {"phase": "Running"}, labels=labels))
    assert (worker.group, worker.index, worker.incarnation) == ("", 0, 0)


def test_a_pod_without_our_container() -> None:
    manifest = {**worker_manifest(), "spec": {"containers": [{"name": "x"}]}}
    pod = parse_pod(raw_pod(manifest, phase("Failed", ended(1, "Error", "bad", name="x"))))
    assert pod.worker
    assert (pod.worker.phase, pod.worker.message) == (Phase.FAILED, "bad")


def test_the_service_is_read_back_from_its_manifest() -> None:
    raw = build_service(make_cluster_job())
    raw["metadata"] |= {"uid": "a-service", "resourceVersion": "7"}
    address = parse_child(raw)
    assert (address.namespace, address.name, address.job) == ("team", "digits-rendezvous", "digits")
    assert (address.uid, address.version, address.owner) == ("a-service", "7", UID)
