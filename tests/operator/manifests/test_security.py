"""The group that may write to the volume of the snapshots, and the priority of pods."""

from __future__ import annotations

from typing import Any

import pytest

from ddpjob_operator.manifests.security import as_restricted
from support.rawpods import JSON, make_cluster_job, rendezvous_manifest, worker_manifest

CLAIM: JSON = {"persistentVolumeClaim": {"claimName": "c"}}
SECCOMP: JSON = {"seccompProfile": {"type": "RuntimeDefault"}}
GROUP: JSON = {"fsGroup": 65532, "fsGroupChangePolicy": "OnRootMismatch"}


def security(storage: JSON | None, **template: Any) -> Any:
    """The security context of a worker whose snapshots are stored so."""
    spec: JSON = {"template": {"spec": template}} if template else {}
    job = make_cluster_job(snapshot={"storage": storage} if storage else {}, **spec)
    return worker_manifest(job)["spec"].get("securityContext")


@pytest.mark.parametrize(
    "storage", [CLAIM, {"ephemeral": {"volumeClaimTemplate": {}}}], ids=["claim", "ephemeral"]
)
def test_a_new_claim_is_writable_for_any_user(storage: JSON) -> None:
    assert security(storage) == {**SECCOMP, **GROUP}


@pytest.mark.parametrize(
    "storage",
    [None, {"emptyDir": {}}, {"hostPath": {"path": "/srv"}}, {"nfs": {"server": "s", "path": "/"}}],
    ids=["none", "empty_dir", "host_path", "nfs"],
)
def test_other_volumes_keep_their_group(storage: JSON | None) -> None:
    assert security(storage) == SECCOMP


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param({"runAsUser": 1000}, {"runAsUser": 1000, **GROUP}, id="user"),
        pytest.param({"fsGroup": 7}, {"fsGroup": 7}, id="group"),
        pytest.param({"fsGroup": None}, {}, id="no_group"),
        pytest.param({"runAsUser": 0}, {"runAsUser": 0}, id="root"),
        pytest.param(None, None, id="nothing_at_all"),
        pytest.param(
            {"fsGroupChangePolicy": "Always"},
            {"fsGroupChangePolicy": "Always", "fsGroup": 65532},
            id="policy",
        ),
    ],
)
def test_a_template_decides_for_itself(given: JSON | None, expected: JSON | None) -> None:
    assert security(CLAIM, securityContext=given) == expected


def test_windows_knows_no_groups() -> None:
    assert security(CLAIM, os={"name": "windows"}) == SECCOMP


# --- priority ------------------------------------------------------------------------------------

HIGH: JSON = {"scheduling": {"priorityClassName": "high"}}


def test_a_priority_class_reaches_all_pods() -> None:
    groups = [
        {"name": "spot", "replicas": 1, "template": {"spec": {"nodeSelector": {"a": "b"}}}},
        {
            "name": "whole",
            "replicas": 1,
            "template": {"spec": {"containers": [{"name": "x", "image": "i", "command": ["c"]}]}},
        },
    ]
    job = make_cluster_job(extraWorkerGroups=groups, **HIGH)
    pods = [rendezvous_manifest(job)]
    pods += [worker_manifest(job, group=name) for name in ("worker", "spot", "whole")]
    assert [pod["spec"]["priorityClassName"] for pod in pods] == ["high"] * 4


def test_a_priority_class_in_the_template_wins() -> None:
    job = make_cluster_job(template={"spec": {"priorityClassName": "low"}}, **HIGH)
    for pod in (worker_manifest(job), rendezvous_manifest(job)):
        assert pod["spec"]["priorityClassName"] == "low"


REFUSAL = (
    'pods "digits-worker-000-1" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot '
    '!= true (pod or container "trainer" must set securityContext.runAsNonRoot=true)'
)


def test_a_restricted_namespace_gets_users_other_than_root() -> None:
    pod = worker_manifest()
    restricted = as_restricted(pod, REFUSAL)
    assert restricted is not None
    assert restricted["spec"]["securityContext"] == {**SECCOMP, "runAsNonRoot": True}
    assert pod["spec"]["securityContext"] == SECCOMP
    assert as_restricted(pod, 'pods "x" is forbidden: exceeded quota: runAsNonRoot') is None


@pytest.mark.parametrize("given", [{"runAsUser": 0}, {"runAsNonRoot": False}, None])
def test_a_template_that_wants_root_is_refused_as_it_is(given: JSON | None) -> None:
    job = make_cluster_job(template={"spec": {"securityContext": given}})
    assert as_restricted(worker_manifest(job), REFUSAL) is None
