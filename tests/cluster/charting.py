"""Runs helm and kubectl for the tests of the chart.

Both keep their caches and settings in a folder of the test: nothing of the user's is read.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import yaml

from cluster.control_plane import ROOT

CHART = ROOT / "charts" / "ddpjob-operator"
RELEASE, NAMESPACE = "ddpjob-operator", "ddpjob-system"
OLDEST_KUBERNETES = "v1.30.0"
TEAMS = ("team-a", "team-b")
DIGEST = "sha256:" + 64 * "a"

# Settings, and how many objects of each kind they make.
NAMED = "watchNamespaces={team-a,team-b}"
FULL = [
    NAMED,
    f"image.digest={DIGEST}",
    "agentImage.repository=registry.example.com:5000/team/agent",
    "agentImage.tag=1.2",
    "imagePullSecrets[0].name=pull",
    "crds.keep=false",
    "rbac.aggregate=true",
    "serviceAccount.name=other",
    "serviceAccount.annotations.a/b=c",
    "logLevel=DEBUG",
    "resources.limits.cpu=2",
    "metrics.service.enabled=true",
    "metrics.service.annotations.a/b=c",
    "nodeSelector.pool=system",
    "tolerations[0].operator=Exists",
    "extraEnv[0].name=HTTPS_PROXY,extraEnv[0].value=http://proxy",
    "podAnnotations.a/b=c",
    "podLabels.app\\.kubernetes\\.io/name=stolen",
    "commonLabels.team=ml",
    "fullnameOverride=ours",
]
ROLES = {"ClusterRole": 3, "ClusterRoleBinding": 1}
BASE = {"CustomResourceDefinition": 1, "Deployment": 1, "ServiceAccount": 1}
TWO_ROLES = {"ClusterRole": 2, "Role": 2, "RoleBinding": 2}
VARIANTS: dict[str, tuple[list[str], dict[str, int]]] = {
    "as-it-comes": ([], {**BASE, **ROLES}),
    "namespaces": ([NAMED], {**BASE, **TWO_ROLES}),
    "no-crd": (["crds.enabled=false"], {**BASE, **ROLES, "CustomResourceDefinition": 0}),
    "digest": ([f"image.digest={DIGEST}"], {**BASE, **ROLES}),
    "no-user-roles": (["rbac.userRoles=false"], {**BASE, **ROLES, "ClusterRole": 1}),
    "no-rbac": (["rbac.create=false", "rbac.userRoles=false"], BASE),
    "own-account": (
        ["serviceAccount.create=false", "serviceAccount.name=mine"],
        {**BASE, **ROLES, "ServiceAccount": 0},
    ),
    "everything": (FULL, {**BASE, **TWO_ROLES, "Service": 1}),
}

READ = {"get", "list", "watch"}
RULES = {  # all that the operator may do
    "ddpjob.io/ddpjobs": READ,
    "ddpjob.io/ddpjobs/status": {"get", "update", "patch"},
    "ddpjob.io/ddpjobs/finalizers": {"update"},
    "/pods": READ | {"create", "delete"},
    "/services": READ | {"create"},
    "/events": {"create", "patch"},
    "/persistentvolumeclaims": {"get"},
}

# The API server makes and removes these by itself, at any time.
FLEETING = (
    "events", "events.events.k8s.io", "leases.coordination.k8s.io",
    "apiservices.apiregistration.k8s.io",
)  # fmt: skip
NAMES = '{range .items[*]}{.kind}/{.metadata.namespace}/{.metadata.name}{"\\n"}{end}'


class Helm:
    """helm and kubectl, with one API server or none."""

    def __init__(self, programs: Path, folder: Path, kubeconfig: Path) -> None:
        self._programs = programs
        self._environment = {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "HOME": str(folder),
            "HELM_CACHE_HOME": str(folder / "helm"),
            "HELM_CONFIG_HOME": str(folder / "helm"),
            "HELM_DATA_HOME": str(folder / "helm"),
            "KUBECACHEDIR": str(folder / "kube"),
            "KUBECONFIG": str(kubeconfig),
        }

    def _do(self, *command: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        program = str(self._programs / command[0])
        return subprocess.run(
            [program, *command[1:]],
            check=False,
            capture_output=True,
            text=True,
            input=stdin,
            env=self._environment,
        )

    def run(self, *arguments: str) -> str:
        """What helm says; it must succeed."""
        done = self._do("helm", *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def refuses(self, *arguments: str) -> str:
        """What helm says; it must fail."""
        done = self._do("helm", *arguments)
        assert done.returncode != 0, done.stdout
        return done.stderr

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """What kubectl says; it must succeed."""
        done = self._do("kubectl", *arguments, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def may(self, verb: str, group: str, resource: str, namespace: str) -> bool:
        """Whether the operator's account may do this."""
        name, _, part = resource.partition("/")
        done = self._do(
            *("kubectl", "auth", "can-i", verb, f"{name}.{group}" if group else name),
            *([f"--subresource={part}"] if part else []),
            *("--namespace", namespace),
            *("--as", f"system:serviceaccount:{NAMESPACE}:{RELEASE}"),
        )
        answer = done.stdout.strip()
        assert answer in ("yes", "no"), done.stderr
        return answer == "yes"

    def everything(self) -> set[str]:
        """All objects that there are, as KIND/NAMESPACE/NAME."""
        kinds = self.kubectl("api-resources", "--verbs=list,get", "--output=name").split()
        lasting = ",".join(kind for kind in kinds if kind not in FLEETING)
        return set(self.kubectl("get", lasting, "-A", f"--output=jsonpath={NAMES}").split())


def render(helm: Helm, settings: list[str]) -> list[dict[str, Any]]:
    """The objects of a release."""
    options = [word for setting in settings for word in ("--set", setting)]
    text = helm.run(
        *("template", RELEASE, str(CHART), "--namespace", NAMESPACE),
        *("--kube-version", OLDEST_KUBERNETES, *options),
    )
    return [each for each in yaml.safe_load_all(text) if each]


def of_kind(objects: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """Those objects that are of this kind."""
    return [each for each in objects if each["kind"] == kind]


def pod_of(objects: list[dict[str, Any]]) -> dict[str, Any]:
    """Spec of the operator's pod."""
    [deployment] = of_kind(objects, "Deployment")
    spec: dict[str, Any] = deployment["spec"]["template"]["spec"]
    return spec


def described(schema: dict[str, Any], path: str = "") -> set[str]:
    """All values that a schema knows, as `image.tag`."""
    found = set()
    for name, inner in schema.get("properties", {}).items():
        found |= {f"{path}{name}", *described(inner, f"{path}{name}.")}
    return found
