"""What `helm test` does in its pod, with the rights of that pod, against a real API server."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.charting import (
    CHART,
    NAMED,
    NAMESPACE,
    OLDEST_KUBERNETES,
    RELEASE,
    TEAMS,
    Helm,
    of_kind,
    options,
)
from cluster.conftest import wait_until_deleted, wait_until_served
from cluster.control_plane import ControlPlane

DEPLOYMENT = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{RELEASE}"
PATHS = {
    "ServiceAccount": "/api/v1/namespaces/{}/serviceaccounts",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings",
}
POD = f"/api/v1/namespaces/{NAMESPACE}/pods?dryRun=All"


@pytest.fixture(scope="module", autouse=True)
def namespaces(apiserver: ControlPlane) -> None:
    """All that the tests speak of."""
    apiserver.create_namespace(NAMESPACE, {"pod-security.kubernetes.io/enforce": "restricted"})
    for name in TEAMS:
        apiserver.create_namespace(name)


def test_objects(helm: Helm, settings: list[str]) -> list[dict[str, Any]]:
    """The objects of `helm test`."""
    text = helm.run(
        *("template", RELEASE, str(CHART), "--namespace", NAMESPACE),
        *("--kube-version", OLDEST_KUBERNETES, "--show-only", "templates/tests/doctor.yaml"),
        *options(settings),
    )
    return [each for each in yaml.safe_load_all(text) if each]


test_objects.__test__ = False  # type: ignore[attr-defined]


@pytest.mark.parametrize("settings", [[], [NAMED]], ids=["cluster", "namespaces"])
def test_it_fails_until_the_operator_is_ready(
    helm: Helm, installer: Helm, apiserver: ControlPlane, tmp_path: Path, settings: list[str]
) -> None:
    objects = test_objects(helm, settings)
    [pod] = of_kind(objects, "Pod")
    [container] = pod["spec"]["containers"]
    more = options(["crds.keep=false", *settings])
    installer.run("install", RELEASE, str(CHART), "--namespace", NAMESPACE, *more)
    created = []
    try:
        wait_until_served(apiserver)
        for each in objects:
            if each["kind"] in PATHS:
                path = PATHS[each["kind"]].format(each["metadata"]["namespace"])
                apiserver.send("POST", path, each)
                created.append(f"{path}/{each['metadata']['name']}")
        apiserver.send("POST", POD, pod)  # restricted, and accepted
        kubeconfig = access_of(apiserver, pod["spec"]["serviceAccountName"], tmp_path)
        assert run(container["args"], kubeconfig) == (1, f"{RELEASE} is not ready")
        status = {"replicas": 1, "readyReplicas": 1, "availableReplicas": 1}
        apiserver.send("PATCH", f"{DEPLOYMENT}/status", {"status": status})
        assert run(container["args"], kubeconfig) == (0, f"{RELEASE} is ready")
    finally:
        for path in created:
            apiserver.answer("DELETE", path)
        installer.run("uninstall", RELEASE, "--namespace", NAMESPACE)
        wait_until_deleted(apiserver)


def access_of(server: ControlPlane, account: str, folder: Path) -> Path:
    """A kubeconfig of a service account."""
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{account}/token"
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    access = yaml.safe_load(server.kubeconfig.read_text())
    access["users"][0]["user"] = {"token": server.send("POST", path, request)["status"]["token"]}
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(access))
    return kubeconfig


def run(arguments: list[str], kubeconfig: Path) -> tuple[int, str]:
    """The exit code, and the part of the output about the operator that matters."""
    program = Path(sys.executable).with_name("ddpjob")
    command: list[str | Path] = [program, *arguments, f"--kubeconfig={kubeconfig}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    known = [
        f"{RELEASE} is {how}"
        for how in ("not ready", "ready")
        if f"{RELEASE} is {how}" in done.stdout
    ]
    return done.returncode, known[0] if known else done.stdout + done.stderr
