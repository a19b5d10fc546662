"""The Helm chart and a real API server: installed, upgraded, uninstalled.

No controllers run beside this API server: a release is its objects and nothing more. What the
operator's pod does is tested in kind.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from cluster.charting import (
    BASE,
    CHART,
    NAMED,
    NAMESPACE,
    RELEASE,
    ROLES,
    RULES,
    TEAMS,
    VARIANTS,
    Helm,
    pod_of,
    render,
)
from cluster.control_plane import ApiServer, build_programs

JOB = {
    "apiVersion": "ddpjob.io/v1alpha1",
    "kind": "DDPJob",
    "metadata": {"name": "one"},
    "spec": {"image": "trainer", "command": ["torchrun", "train.py"], "replicas": 1},
}
CRD = "CustomResourceDefinition//ddpjobs.ddpjob.io"


@pytest.fixture(scope="module")
def helm(apiserver: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """An API server of our own, with the namespaces that the tests speak of."""
    folder = tmp_path_factory.mktemp("helm")
    for namespace in (NAMESPACE, *TEAMS):
        apiserver.kubectl("create", "namespace", namespace)
    apiserver.kubectl("label", "ns", NAMESPACE, "pod-security.kubernetes.io/enforce=restricted")
    return Helm(build_programs("helm", "kubectl"), folder, apiserver.kubeconfig)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_api_server_takes_every_object(helm: Helm, variant: str) -> None:
    objects = render(helm, VARIANTS[variant][0])
    options = ("--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict")
    said = helm.kubectl("apply", *options, "-f", "-", stdin=yaml.safe_dump_all(objects))
    assert said.count("serverside-applied (server dry run)") == len(objects)


@pytest.fixture
def installed(helm: Helm) -> Iterator[Helm]:
    """The chart as it comes; gone afterwards, with the CRD."""
    helm.run("install", RELEASE, str(CHART), "--namespace", NAMESPACE)
    yield helm
    remove(helm)


def remove(helm: Helm) -> None:
    helm.run("uninstall", RELEASE, "--namespace", NAMESPACE, "--ignore-not-found")
    helm.kubectl("delete", "crd", "ddpjobs.ddpjob.io", "--ignore-not-found", "--wait")


@pytest.mark.parametrize("keep", [True, False], ids=["crd-kept", "crd-not-kept"])
def test_nothing_is_left_behind_but_the_crd(helm: Helm, keep: bool) -> None:
    before = helm.everything()
    release = (RELEASE, str(CHART), "--namespace", NAMESPACE, "--set", f"crds.keep={keep}".lower())
    try:
        helm.run("install", *release)
        created = {name.partition("/")[0] for name in helm.everything() - before}
        assert created >= {*BASE, *ROLES}
        helm.run("upgrade", *release, "--set", NAMED, "--set", "metrics.service.enabled=true")
        changed = {name.partition("/")[0] for name in helm.everything() - before}
        assert changed >= {*BASE, "Role", "RoleBinding", "Service"}
        assert "ClusterRoleBinding" not in changed
        helm.run("uninstall", RELEASE, "--namespace", NAMESPACE)
        if not keep:
            helm.kubectl("wait", "--for=delete", "crd/ddpjobs.ddpjob.io", "--timeout=60s")
        expect(helm, before | ({CRD} if keep else set()))
    finally:
        remove(helm)


def expect(helm: Helm, expected: set[str]) -> None:
    """Objects of the API server's own may still be on their way."""
    deadline = time.monotonic() + 30
    while (found := helm.everything()) != expected:
        if time.monotonic() > deadline:
            pytest.fail(f"left: {sorted(found - expected)}, gone: {sorted(expected - found)}")
        time.sleep(0.2)


def test_jobs_outlive_an_uninstallation(installed: Helm) -> None:
    installed.kubectl("wait", "--for=condition=Established", "crd/ddpjobs.ddpjob.io")
    installed.kubectl("create", "--namespace", "team-a", "-f", "-", stdin=json.dumps(JOB))
    installed.run("uninstall", RELEASE, "--namespace", NAMESPACE)
    installed.run("install", RELEASE, str(CHART), "--namespace", NAMESPACE)
    assert installed.kubectl("get", "ddp", "-n", "team-a", "-o", "name") == "ddpjob.ddpjob.io/one\n"


def test_another_operator_for_other_namespaces_fits_in(installed: Helm) -> None:
    shared = "crds.enabled=false,rbac.userRoles=false"
    installed.run("upgrade", RELEASE, str(CHART), "-n", NAMESPACE, "--set", NAMED)
    other = ("another", str(CHART), "--namespace", "team-b", "--set", "watchNamespaces={default}")
    assert "ClusterRole" in installed.refuses("install", *other, "--set", "crds.enabled=false")
    installed.run("install", *other, "--set", shared)
    installed.run("uninstall", "another", "--namespace", "team-b")


@pytest.mark.parametrize(
    ("settings", "where", "elsewhere"),
    [([], ["default", "team-a"], []), ([NAMED], ["team-a", "team-b"], ["default", NAMESPACE])],
    ids=["cluster", "namespaces"],
)
def test_the_api_server_lets_the_operator_do_its_work_and_no_more(
    installed: Helm, settings: list[str], where: list[str], elsewhere: list[str]
) -> None:
    options = [word for setting in settings for word in ("--set", setting)]
    installed.run("upgrade", RELEASE, str(CHART), "--namespace", NAMESPACE, *options)
    needed = [(verb, what.partition("/")) for what, verbs in RULES.items() for verb in verbs]
    for namespace in where:
        for verb, (group, _, resource) in needed:
            assert installed.may(verb, group, resource, namespace), (verb, resource, namespace)
        for verb, group, resource in (
            ("get", "", "secrets"),
            ("update", "", "pods"),
            ("patch", "", "pods"),
            ("create", "", "pods/exec"),
            ("delete", "", "services"),
            ("list", "", "nodes"),
            ("update", "ddpjob.io", "ddpjobs"),
            ("create", "rbac.authorization.k8s.io", "roles"),
        ):
            assert not installed.may(verb, group, resource, namespace), (verb, resource)
    for namespace in elsewhere:
        for verb, (group, _, resource) in needed:
            assert not installed.may(verb, group, resource, namespace), (verb, resource, namespace)


def test_the_operators_pod_is_restricted(installed: Helm) -> None:
    pod: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "operator", "namespace": NAMESPACE},
        "spec": pod_of(render(installed, [])),
    }
    options = ("create", "--dry-run=server", "--validate=strict", "-f", "-")
    assert "created" in installed.kubectl(*options, stdin=json.dumps(pod))
    del pod["spec"]["containers"][0]["securityContext"]
    with pytest.raises(AssertionError, match='violates PodSecurity "restricted'):
        installed.kubectl(*options, stdin=json.dumps(pod))
