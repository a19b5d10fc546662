"""The chart on a real cluster: tested by helm, upgraded, rolled back, uninstalled without a trace."""

from __future__ import annotations

import json
from pathlib import Path

from e2e.conftest import CHART, Images, helm, settings_for
from e2e.kubectl import Kubectl

RELEASE = "second"
FULL_NAME = f"{RELEASE}-ddpjob-operator"
OF_NAMESPACE = (
    "configmaps,deployments,leases,poddisruptionbudgets,pods,replicasets,rolebindings,roles,"
    "secrets,serviceaccounts,services"
)
OF_CLUSTER = "clusterroles,clusterrolebindings"
WAIT = ("--wait", "--timeout", "5m")


def objects(kubectl: Kubectl) -> set[str]:
    """All objects of the release, in its namespace and in the cluster; helm's own, too."""
    kinds = (OF_NAMESPACE, OF_CLUSTER)
    found = [name for each in kinds for name in kubectl("get", each, "--output=name").split()]
    return {name for name in found if RELEASE in name}


def level(kubectl: Kubectl) -> str:
    """The operator's level of log messages."""
    deployment = json.loads(kubectl("get", "deployment", FULL_NAME, "--output=json"))
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    [value] = [each["value"] for each in container["env"] if each["name"] == "DDPJOB_LOG_LEVEL"]
    return str(value)


def test_a_release_is_tested_upgraded_rolled_back_and_leaves_nothing(
    kubectl: Kubectl, kubeconfig: Path, images: Images
) -> None:
    namespace = kubectl.namespace
    assert objects(kubectl) == set()
    shared = "crds.enabled=false,crds.keep=false,rbac.userRoles=false"
    own = ("--set", f"{shared},watchNamespaces={{{namespace}}}", *settings_for(images))

    def run(*arguments: str) -> str:
        return helm(kubeconfig, *arguments, namespace=namespace)

    run("install", RELEASE, str(CHART), *own, *WAIT)
    installed = objects(kubectl)
    assert f"lease.coordination.k8s.io/{FULL_NAME}" in installed
    assert "Phase:          Succeeded" in run("test", RELEASE, "--timeout", "5m")
    assert not [name for name in objects(kubectl) if name.endswith("-test")]

    more = "logLevel=DEBUG,metrics.service.enabled=true,metrics.dashboards.enabled=true"
    run("upgrade", RELEASE, str(CHART), *own, "--set", more, *WAIT)
    assert level(kubectl) == "DEBUG"
    assert f"service/{FULL_NAME}-metrics" in objects(kubectl)
    assert "Phase:          Succeeded" in run("test", RELEASE, "--timeout", "5m")

    run("rollback", RELEASE, "1", *WAIT)
    assert level(kubectl) == "INFO"
    assert f"service/{FULL_NAME}-metrics" not in objects(kubectl)

    run("uninstall", RELEASE, *WAIT)
    kubectl.until(lambda: not objects(kubectl), "nothing is left")
