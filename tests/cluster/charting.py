"""Runs helm for the tests of the chart, and reads what a release has brought.

Helm keeps its caches and settings in a folder of the test: nothing of the user's is read.
"""

from __future__ import annotations

import functools
import os
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from cluster.control_plane import ROOT, ControlPlane, build_programs

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
    "web.enabled=true",
    "web.hosts={jobs.example.com}",
    "web.from[0].podSelector.matchLabels.app=ingress",
    "nodeSelector.pool=system",
    "tolerations[0].operator=Exists",
    "extraEnv[0].name=HTTPS_PROXY,extraEnv[0].value=http://proxy",
    "extraEnvFrom[0].configMapRef.name=more",
    "extraVolumes[0].name=certificates,extraVolumes[0].configMap.name=certificates",
    "extraVolumeMounts[0].name=certificates,extraVolumeMounts[0].mountPath=/certificates",
    "topologySpreadConstraints[0].topologyKey=zone,topologySpreadConstraints[0].maxSkew=1",
    "topologySpreadConstraints[0].whenUnsatisfiable=ScheduleAnyway",
    "priorityClassName=system-cluster-critical",
    "metrics.dashboards.enabled=true",
    "metrics.dashboards.annotations.grafana_folder=ddpjob",
    "podAnnotations.a/b=c",
    "podLabels.app\\.kubernetes\\.io/name=stolen",
    "commonLabels.team=ml",
    "fullnameOverride=ours",
]
LEASE = {"Role": 2, "RoleBinding": 2}  # in the operator's own namespace, and in kube-node-lease
ROLES = {"ClusterRole": 3, "ClusterRoleBinding": 1, **LEASE}
BASE = {
    "CustomResourceDefinition": 1, "Deployment": 1, "Lease": 1, "NetworkPolicy": 1,
    "PodDisruptionBudget": 1, "Secret": 1, "ServiceAccount": 1,
    "ValidatingAdmissionPolicy": 1, "ValidatingAdmissionPolicyBinding": 1,
}  # fmt: skip
TWO_ROLES = {"ClusterRole": 2, "Role": 4, "RoleBinding": 4}
VARIANTS: dict[str, tuple[list[str], dict[str, int]]] = {
    "as-it-comes": ([], {**BASE, **ROLES}),
    "namespaces": ([NAMED], {**BASE, **TWO_ROLES}),
    "no-crd": (["crds.enabled=false"], {**BASE, **ROLES, "CustomResourceDefinition": 0}),
    "one-replica": (["replicas=1"], {**BASE, **ROLES, "PodDisruptionBudget": 0}),
    "no-node-leases": (["nodeLeases=false"], {**BASE, **ROLES, "Role": 1, "RoleBinding": 1}),
    "digest": ([f"image.digest={DIGEST}"], {**BASE, **ROLES}),
    "no-user-roles": (["rbac.userRoles=false"], {**BASE, **ROLES, "ClusterRole": 1}),
    "no-rbac": (["rbac.create=false", "rbac.userRoles=false"], BASE),
    "own-account": (
        ["serviceAccount.create=false", "serviceAccount.name=mine"],
        {**BASE, **ROLES, "ServiceAccount": 0},
    ),
    "open": (
        [
            "networkPolicy.jobs=false",
            "networkPolicy.operator=false",
            "admissionPolicy.enabled=false",
        ],
        {
            **BASE,
            **ROLES,
            "NetworkPolicy": 0,
            "ValidatingAdmissionPolicy": 0,
            "ValidatingAdmissionPolicyBinding": 0,
        },
    ),
    "web": (["web.enabled=true"], {**BASE, **ROLES, "Service": 1}),
    "everything": (FULL, {**BASE, **TWO_ROLES, "Service": 2, "ConfigMap": 2}),
}

READ = {"get", "list", "watch"}
RULES = {  # all that the operator may do
    "ddpjob.io/ddpjobs": {*READ, "delete"},
    "ddpjob.io/ddpjobs/status": {"update"},
    "ddpjob.io/ddpjobs/finalizers": {"update"},
    "/pods": READ | {"create", "delete"},
    "/services": READ | {"create"},
    "/secrets": {"create"},
    "networking.k8s.io/networkpolicies": READ | {"create"},
    "/events": {"create"},
    "/persistentvolumeclaims": {"get"},
}

# The API server makes and removes these by itself, at any time.
FLEETING = (
    "events", "events.events.k8s.io", "apiservices.apiregistration.k8s.io",
)  # fmt: skip
ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


class Helm:
    """Helm, with one API server or none."""

    def __init__(self, folder: Path, kubeconfig: Path) -> None:
        self._program = build_programs("helm") / "helm"
        self._environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "HELM_CACHE_HOME": str(folder / "helm"),
            "HELM_CONFIG_HOME": str(folder / "helm"),
            "HELM_DATA_HOME": str(folder / "helm"),
            "KUBECONFIG": str(kubeconfig),
        }

    def _do(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self._program, *arguments],
            check=False,
            capture_output=True,
            text=True,
            env=self._environment,
        )

    def run(self, *arguments: str) -> str:
        """What helm says; it must succeed."""
        done = self._do(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def shell(self, line: str) -> None:
        """Run a line of a page in a shell that finds helm and kubectl; it must succeed."""
        path = f"{build_programs('helm', 'kubectl')}{os.pathsep}{self._environment['PATH']}"
        done = subprocess.run(
            ["bash", "-euc", line],
            cwd=ROOT,
            env={**self._environment, "PATH": path},
            check=False,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{line}\n{done.stderr}"

    def refuses(self, *arguments: str) -> str:
        """What helm says; it must fail."""
        done = self._do(*arguments)
        assert done.returncode != 0, done.stdout
        return done.stderr


class Wish(NamedTuple):
    """What the operator might want to do."""

    verb: str
    group: str
    resource: str
    namespace: str


def may(server: ControlPlane, wish: Wish) -> bool:
    """Whether the operator's account may do this."""
    resource, _, subresource = wish.resource.partition("/")
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {
            "resourceAttributes": {
                **wish._asdict(),
                "resource": resource,
                "subresource": subresource,
            }
        },
    }
    as_operator = {"Impersonate-User": f"system:serviceaccount:{NAMESPACE}:{RELEASE}"}
    allowed: bool = server.send("POST", ACCESS_REVIEWS, review, as_operator)["status"]["allowed"]
    return allowed


def everything(server: ControlPlane) -> set[str]:
    """All objects that there are, as KIND/NAMESPACE/NAME."""
    groups = server.get("/apis")["groups"]
    versions = ["v1", *(group["preferredVersion"]["groupVersion"] for group in groups)]
    return {name for version in versions for name in objects_of(server, version)}


def objects_of(server: ControlPlane, version: str) -> Iterator[str]:
    """The lasting objects of one version of the API; none while its CRD is being deleted."""
    group, slash, _ = version.rpartition("/")
    base = f"/apis/{version}" if slash else f"/api/{version}"
    for resource in server.answer("GET", base)[1].get("resources", ()):
        full_name = f"{resource['name']}.{group}".rstrip(".")
        if {"list", "get"} <= set(resource["verbs"]) and full_name not in FLEETING:
            for each in server.answer("GET", f"{base}/{resource['name']}")[1].get("items", ()):
                metadata = each["metadata"]
                if resource["kind"] == "Lease" and metadata["namespace"] == "kube-system":
                    continue  # the API server's own
                yield f"{resource['kind']}/{metadata.get('namespace', '')}/{metadata['name']}"


def render(helm: Helm, settings: Sequence[str]) -> list[dict[str, Any]]:
    """The objects of a release, rendered once: not to be changed."""
    return _rendered(helm, tuple(settings))


@functools.cache
def _rendered(helm: Helm, settings: tuple[str, ...]) -> list[dict[str, Any]]:
    text = helm.run(
        *("template", RELEASE, str(CHART), "--namespace", NAMESPACE),
        *("--kube-version", OLDEST_KUBERNETES, "--skip-tests", *options(settings)),
    )
    return [each for each in yaml.load_all(text, yaml.CSafeLoader) if each]


def options(settings: Iterable[str]) -> list[str]:
    """Settings as words of a command line."""
    return [word for setting in settings for word in ("--set", setting)]


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
