"""`ddpjob doctor` against a real API server with parts missing; the test plays kubelet."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.charting import CHART, NAMESPACE, RELEASE, RULES, Helm, options
from cluster.conftest import DEFINITION, wait_until_deleted, wait_until_served
from cluster.control_plane import ControlPlane, Object, eventually
from cluster.test_commands import Shell
from ddpjob_operator.cli.common import ExitCode
from ddpjob_operator.cli.doctor.rights import OPERATOR

HERE = "doctored"
DEPLOYMENT = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{RELEASE}"
PODS = f"/api/v1/namespaces/{HERE}/pods"
NODE: Object = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "gpu-node"},
    "spec": {"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]},
    "status": {
        "allocatable": {"cpu": "8", "nvidia.com/gpu": "8"},
        "conditions": [{"type": "Ready", "status": "True"}],
    },
}


@pytest.fixture(scope="module")
def here(apiserver: ControlPlane) -> ControlPlane:
    apiserver.create_namespace(HERE)
    return apiserver


@pytest.fixture
def ddpjob(here: ControlPlane, tmp_path: Path) -> Shell:
    return Shell(here, HERE, tmp_path)


@pytest.fixture
def release(here: ControlPlane, installer: Helm) -> Iterator[Helm]:
    where = ("--namespace", NAMESPACE, "--create-namespace")
    installer.run("install", RELEASE, str(CHART), *where, *options(["crds.keep=false"]))
    try:
        wait_until_served(here)
        yield installer
    finally:
        installer.run("uninstall", RELEASE, "--namespace", NAMESPACE)
        wait_until_deleted(here)


def found(ddpjob: Shell, code: ExitCode, *arguments: str) -> dict[str, Any]:
    """The findings by check: state and message."""
    said = ddpjob.fails(code, "doctor", "-o", "json", *arguments)
    findings = json.loads(said[said.index("[\n") : said.rindex("]") + 1])
    return {each["check"]: (each["state"], each["message"]) for each in findings}


def states(findings: dict[str, Any]) -> dict[str, str]:
    return {check: state for check, (state, _) in findings.items()}


def test_rights_of_the_operator_are_those_of_the_chart() -> None:
    chart = {(group_resource, verb) for group_resource, verbs in RULES.items() for verb in verbs}
    assert {(f"{right.group}/{right.resource}", right.verb) for right in OPERATOR} == chart


def test_a_cluster_without_anything(ddpjob: Shell) -> None:
    said = ddpjob.fails(ExitCode.CHECK_FAILED, "doctor")
    heads, *lines = said.splitlines()
    assert heads.split() == ["STATE", "CHECK", "RESULT"]
    rows = [line.split(maxsplit=2) for line in lines]
    failed = [row[1] for row in rows if row[0] == "fail"]
    assert failed == ["crd", "operator", "nodes"]
    assert "-> helm install ddpjob-operator " in said


def test_a_server_that_does_not_answer(ddpjob: Shell) -> None:
    config = yaml.safe_load(ddpjob.kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    ddpjob.kubeconfig.write_text(yaml.safe_dump(config))
    assert "cannot be reached" in ddpjob.fails(ExitCode.UNREACHABLE, "doctor")


def test_an_installation_and_its_parts(ddpjob: Shell, here: ControlPlane, release: Helm) -> None:
    here.send("POST", "/api/v1/nodes", NODE)
    here.send("PATCH", "/api/v1/nodes/gpu-node/status", {"status": NODE["status"]})
    first = found(ddpjob, ExitCode.CHECK_FAILED)
    assert first["operator"] == ("fail", f"deployment {NAMESPACE}/{RELEASE} is not ready")
    ready = {"replicas": 1, "readyReplicas": 1}
    here.send("PATCH", f"{DEPLOYMENT}/status", {"status": ready})
    taints = {"spec": {"taints": None}}
    here.send("PATCH", "/api/v1/nodes/gpu-node", taints)
    second = found(ddpjob, ExitCode.OK)
    good = [*"kubernetes crd operator nodes gpus".split(), "operator rights", "your rights"]
    assert states(second) == dict.fromkeys(good, "ok") | {"images": "warn"}
    assert second["gpus"][1] == "8 nvidia.com/gpu on 1 node: gpu-node 8"

    definition = here.get(DEFINITION)
    spec = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    del spec["properties"]["keepPods"]
    here.send("PUT", DEFINITION, definition)
    roles = f"/apis/rbac.authorization.k8s.io/v1/clusterroles/{RELEASE}"
    role = here.get(roles)
    here.send("PUT", roles, {**role, "rules": role["rules"][:-1]})
    third = found(ddpjob, ExitCode.CHECK_FAILED)
    assert third["crd"][0] == "warn"
    assert "it lacks spec.keepPods" in third["crd"][1]
    assert third["operator rights"] == (
        "fail",
        f"the operator lacks get persistentvolumeclaims in namespace {HERE}",
    )


def test_a_user_without_rights(ddpjob: Shell, here: ControlPlane, release: Helm) -> None:
    account = f"/api/v1/namespaces/{HERE}/serviceaccounts"
    here.send("POST", account, {"metadata": {"name": "ann"}})
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token = here.send("POST", f"{account}/ann/token", request)["status"]["token"]
    config = yaml.safe_load(ddpjob.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token}
    ddpjob.kubeconfig.write_text(yaml.safe_dump(config))
    before = found(ddpjob, ExitCode.CHECK_FAILED)
    assert states(before) == {"kubernetes": "ok", "your rights": before["your rights"][0]} | (
        dict.fromkeys(("crd", "operator", "nodes", "images"), "warn")
    )
    binding = {
        "metadata": {"name": "ann"},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "ddpjob-viewer",
        },
        "subjects": [{"kind": "ServiceAccount", "name": "ann", "namespace": HERE}],
    }  # fmt: skip
    here.send("POST", f"/apis/rbac.authorization.k8s.io/v1/namespaces/{HERE}/rolebindings", binding)
    said = ddpjob.fails(ExitCode.OK, "doctor")
    lacks = "you lack create ddpjobs.ddpjob.io, patch ddpjobs.ddpjob.io in namespace doctored"
    assert f"apply: {lacks}" in said
    assert "an administrator can bind the cluster role ddpjob-editor to you" in said
    assert "logs: you lack" not in said


def pods_here(server: ControlPlane) -> list[Object]:
    items: list[Object] = server.get(PODS)["items"]
    return items


def play(server: ControlPlane, number: int, status: Object) -> None:
    """Write the status of the n-th test pod once it is there."""
    eventually(lambda: len(pods_here(server)) >= number, "the test pod is there")
    pod = max(pods_here(server), key=lambda p: int(p["metadata"]["resourceVersion"]))
    server.send("PATCH", f"{PODS}/{pod['metadata']['name']}/status", {"status": status})


def status_of(state: Object) -> Object:
    container = {"name": "doctor", "image": "x", "imageID": "", "ready": False, "restartCount": 0}
    ip = "10.0.0.7"
    return {
        "podIP": ip, "podIPs": [{"ip": ip}], "containerStatuses": [{**container, "state": state}],
    }  # fmt: skip


def finish(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=120)
    assert "Traceback" not in err
    return out + err


def test_test_pods_prove_something_and_are_gone_afterwards(
    ddpjob: Shell, here: ControlPlane
) -> None:
    waiting = {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}
    with ddpjob.start("doctor", "--image", "absent:1") as process:
        play(here, 1, status_of(waiting))
        assert "absent:1 cannot be pulled: no such image" in finish(process)
        assert process.returncode == ExitCode.CHECK_FAILED
    assert pods_here(here) == []

    with ddpjob.start("doctor", "--image", "python", "--reach") as process:
        play(here, 1, status_of({"terminated": {"exitCode": 0}}))
        eventually(lambda: len(pods_here(here)) == 2, "the first of the two pods is there")
        play(here, 2, status_of({"running": {}}))
        eventually(lambda: len(pods_here(here)) == 3, "the second one is there")
        [second] = [pod for pod in pods_here(here) if "affinity" in pod["spec"]]
        assert second["spec"]["containers"][0]["command"][-1] == "10.0.0.7"
        ended = {"terminated": {"exitCode": 10, "message": "timed out"}}
        play(here, 3, status_of(ended))
        said = finish(process)
        assert "python was pulled on no node, and has python3" in said
        assert "port 29400: timed out" in said
        assert "-> a network policy or a firewall" in said
    assert pods_here(here) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_no_test_pod(
    ddpjob: Shell, here: ControlPlane, number: signal.Signals
) -> None:
    with ddpjob.start("doctor", "--reach", "--image", "python") as process:
        eventually(lambda: len(pods_here(here)) == 1, "the test pod is there")
        process.send_signal(number)
        finish(process)
    assert pods_here(here) == []
