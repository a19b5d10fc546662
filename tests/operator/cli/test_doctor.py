"""The checks of `ddpjob doctor`, from objects as an API server sends them; tests/cluster has one."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from ddpjob_operator.api.crd import build_crd
from ddpjob_operator.cli.doctor import probe_pods
from ddpjob_operator.cli.doctor.command import check
from ddpjob_operator.cli.doctor.observed import Denied, Finding, Observed, State
from ddpjob_operator.cli.doctor.rights import OPERATOR, USER

Object = dict[str, Any]
NO = Denied("you lack a right")
OK, WARN, FAIL = State.OK, State.WARN, State.FAIL


def make_node(
    name: str = "a", *taints: str, gpus: int = 0, ready: bool = True, **spec: Any
) -> Object:
    marks = [dict(zip(("key", "effect"), taint.split(":"), strict=True)) for taint in taints]
    return {
        "metadata": {"name": name},
        "spec": {"taints": marks, **spec},
        "status": {
            "allocatable": {"cpu": "8"} | ({"nvidia.com/gpu": str(gpus)} if gpus else {}),
            "conditions": [{"type": "Ready", "status": str(ready)}],
        },
    }


def make_deployment(name: str = "op", *args: str, ready: int = 1, version: str = "1.0") -> Object:
    return {
        "metadata": {
            "name": name,
            "namespace": "system",
            "labels": {"app.kubernetes.io/version": version},
        },
        "spec": {"template": {"spec": {"containers": [{"args": ["operator", "run", *args]}]}}},
        "status": {"readyReplicas": ready},
    }


def make_pod(image: str = "x:1", *, phase: str = "containerStatuses", **status: Any) -> Object:
    status = status or {"imageID": "sha256:1", "state": {"running": {}}}
    found = {phase: [{"image": image, **status}], "podIP": "10.0.0.1"}
    return {"metadata": {"name": "pod"}, "spec": {"nodeName": "a"}, "status": found}


def waits(reason: str, message: str = "no such host") -> Object:
    return {"state": {"waiting": {"reason": reason, "message": message}}}


def ends(code: int, **more: str) -> Object:
    return {"state": {"terminated": {"exitCode": code, **more}}}


HEALTHY = Observed(
    own_version="1.0",
    kubernetes="v1.34.0",
    namespace="team",
    served=True,
    crd=build_crd(),
    deployments=[make_deployment()],
    operator_pods=[make_pod("operator:1")],
    job_pods=[],
    nodes=[make_node(gpus=8)],
    user_rights={right: True for rights in USER.values() for right in rights},
    operator_rights=dict.fromkeys(OPERATOR, True),
)


def without_field() -> Object:
    crd = build_crd()
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    del schema["properties"]["spec"]["properties"]["snapshot"]["properties"]["files"]
    schema["properties"]["spec"]["properties"]["newer"] = {"type": "string"}
    return crd


def test_a_healthy_cluster_has_one_good_line_for_each_check() -> None:
    found = [*check(HEALTHY, "nvidia.com/gpu")]
    assert {each.state for each in found} == {OK}
    messages = {each.check: each.message for each in found}
    assert messages["nodes"] == "1 of 1 node can run workers"
    assert messages["gpus"].startswith("8 nvidia.com/gpu on 1 node: ")
    assert [each.check for each in found] == (
        [
            "kubernetes",
            "crd",
            "operator",
            "operator rights",
            "your rights",
            "nodes",
            "gpus",
            "images",
        ]
    )


@pytest.mark.parametrize(
    ("changes", "name", "state", "message"),
    [
        ({"kubernetes": "v1.29.3+x"}, "kubernetes", FAIL, "v1.29.3+x is older than 1.30"),
        ({"served": False}, "crd", FAIL, "the CRD of DDPJobs is not installed"),
        ({"crd": NO}, "crd", WARN, "their fields were not compared: you lack a right"),
        ({"crd": without_field()}, "crd", WARN, "it lacks spec.snapshot.files; it has spec.newer,"),
        ({"deployments": NO}, "operator", WARN, "was not checked: you lack a right"),
        ({"deployments": []}, "operator", FAIL, "there is no deployment of the operator"),
        (
            {"deployments": [make_deployment("op", "--namespace=a", "--namespace=b")]},
            "operator", FAIL, "no operator watches namespace team; they watch a, b",
        ),
        (
            {"deployments": [make_deployment("one"), make_deployment("two")]},
            "operator", FAIL, "2 operators watch namespace team: deployment system/one,",
        ),
        (
            {"deployments": [make_deployment(version="0.9")]},
            "operator", WARN, "with version 0.9; this ddpjob has 1.0",
        ),
        (
            {
                "deployments": [make_deployment(ready=0)],
                "operator_pods": [make_pod(**waits("ErrImagePull"))],
            },
            "operator", FAIL, "system/op is not ready: ErrImagePull: no such host",
        ),
        ({"operator_rights": NO}, "operator rights", WARN, "were not checked: you lack a right"),
        (
            {"operator_rights": dict.fromkeys(OPERATOR, True) | {OPERATOR[-1]: False}},
            "operator rights", FAIL, "the operator lacks get persistentvolumeclaims in namespace",
        ),
        (
            {"user_rights": {**HEALTHY.user_rights, USER["delete"][0]: False}},
            "your rights", WARN, "delete: you lack delete ddpjobs.ddpjob.io in namespace team",
        ),
        (
            {"user_rights": {}},
            "your rights", FAIL, "get, describe, wait, top: you lack get ddpjobs.ddpjob.io, list",
        ),
        ({"nodes": NO}, "nodes", WARN, "the nodes were not checked: you lack a right"),
        (
            {"nodes": [make_node("a", unschedulable=True), make_node("b", "k:NoSchedule")]},
            "nodes", FAIL, "0 of 2 nodes can run workers (a is cordoned; b has taints k:NoSchedule)",
        ),
        (
            {"nodes": [make_node("a"), make_node("b", ready=False)]},
            "nodes", WARN, "1 of 2 nodes can run workers (b is not ready)",
        ),
        ({"nodes": [make_node()]}, "gpus", WARN, "no node has nvidia.com/gpu"),
        (
            {"nodes": [make_node(gpus=4), make_node("b", "gpu:NoSchedule", gpus=8)]},
            "gpus", WARN, "12 nvidia.com/gpu on 2 nodes: a 4, b 8. These nodes have taints: gpu:NoS",
        ),
        (
            {"job_pods": [make_pod("y:2", phase="initContainerStatuses", **waits("ErrImagePull"))]},
            "images", FAIL, "y:2 cannot be pulled: pod: no such host",
        ),
        ({"operator_pods": []}, "images", WARN, "no pod of the operator or of a job shows"),
        ({"job_pods": NO}, "images", WARN, "images of some pods were not checked"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_found_and_has_a_remedy(
    changes: Object, name: str, state: State, message: str
) -> None:
    found = [*check(dataclasses.replace(HEALTHY, **changes), "nvidia.com/gpu")]
    [finding] = [each for each in found if each.check == name and message in each.message]
    assert finding.state is state
    assert finding.remedy


FIRST = make_pod()


@pytest.mark.parametrize(
    ("status", "state", "message"),
    [
        (waits("ImagePullBackOff"), FAIL, "x:1 cannot be pulled: no such host"),
        (waits("CreateContainerError", "python3: not found"), FAIL, "python3 cannot start in it"),
        (ends(128, reason="StartError", message="no python3"), FAIL, "cannot start in it: no py"),
        (ends(1), FAIL, "its python3 is older than 3.9"),
        (ends(0), OK, "x:1 was pulled on a, and has python3"),
    ],
)
def test_the_pod_of_an_image(status: Object, state: State, message: str) -> None:
    found = probe_pods.judge_image(make_pod(**status), "x:1")
    assert isinstance(found, Finding)
    assert (found.state, message in found.message) == (state, True)


@pytest.mark.parametrize(
    ("code", "state", "message"),
    [
        (0, OK, "pods on a and a reach each other"),
        (10, FAIL, "from a pod on a to a, port 29400: timed out"),
        (11, FAIL, "port 29400: timed out"),
        (2, FAIL, "ended with exit code 2"),
    ],
)
def test_two_pods_that_connect(code: int, state: State, message: str) -> None:
    found = probe_pods.judge_reach(FIRST, make_pod(**ends(code, message="trace\ntimed out\n")), "x")
    assert isinstance(found, Finding)
    assert (found.state, message in found.message) == (state, True)


def test_pods_that_have_not_ended_decide_nothing() -> None:
    empty: Object = {"spec": {}, "status": {}}
    for pod in (FIRST, make_pod(**waits("ContainerCreating")), empty):
        assert probe_pods.judge_image(pod, "x") is None
        assert probe_pods.judge_reach(FIRST, pod, "x") is None
