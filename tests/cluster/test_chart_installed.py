"""The Helm chart and a real API server: installed, upgraded, uninstalled.

No controllers run beside this API server: a release is its objects and nothing more. What the
operator's pod does is tested in kind.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

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
    Wish,
    everything,
    may,
    options,
    pod_of,
    render,
)
from cluster.conftest import DEFINITION, wait_until_deleted, wait_until_served
from cluster.control_plane import ControlPlane, eventually
from cluster.jobs import DRY, Jobs
from cluster.people import token_of
from support.pages import blocks

JOB = {
    "apiVersion": "ddpjob.io/v1alpha1",
    "kind": "DDPJob",
    "metadata": {"name": "one"},
    "spec": {"image": "trainer", "command": ["torchrun", "train.py"], "replicas": 1},
}
CRD = "CustomResourceDefinition//ddpjobs.ddpjob.io"
KEY = f"{RELEASE}-key"
HERE = ("--namespace", NAMESPACE)
EVERY_ACCOUNT = {
    "create authorization.k8s.io/selfsubjectaccessreviews",
    "create authorization.k8s.io/selfsubjectrulesreviews",
    "create authentication.k8s.io/selfsubjectreviews",
}
OF_LEASES = "coordination.k8s.io/leases"
LEASES = {
    NAMESPACE: {
        f"create {OF_LEASES}",
        *(f"{verb} {OF_LEASES} {RELEASE}" for verb in ("get", "update")),
    },
    "kube-node-lease": {f"get {OF_LEASES}"},
}
NEEDS_MORE = re.compile(r"rollout status|port-forward|\.\.\.")  # a running pod; more arguments
MORE = [  # that the operator may not do
    ("get", "", "secrets"),
    ("update", "", "pods"),
    ("patch", "", "pods"),
    ("create", "", "pods/exec"),
    ("delete", "", "services"),
    ("list", "", "nodes"),
    ("update", "ddpjob.io", "ddpjobs"),
    ("create", "rbac.authorization.k8s.io", "roles"),
]


@pytest.fixture(scope="module", autouse=True)
def namespaces(apiserver: ControlPlane) -> None:
    """All that the tests speak of."""
    apiserver.create_namespace(NAMESPACE, {"pod-security.kubernetes.io/enforce": "restricted"})
    for name in TEAMS:
        apiserver.create_namespace(name)


def test_the_api_server_takes_every_object(helm: Helm, apiserver: ControlPlane) -> None:
    rendered = [each for settings, _ in VARIANTS.values() for each in render(helm, settings)]
    objects = [json.loads(text) for text in {json.dumps(each) for each in rendered}]
    every = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    how = ("--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict")
    said = apiserver.kubectl("apply", *how, "-f", "-", stdin=every)
    assert said.count("serverside-applied (server dry run)") == len(objects)


def remove(installer: Helm, apiserver: ControlPlane) -> None:
    installer.run("uninstall", RELEASE, *HERE, "--ignore-not-found")
    apiserver.answer("DELETE", DEFINITION)
    apiserver.answer("DELETE", f"/api/v1/namespaces/{NAMESPACE}/secrets/{KEY}")
    wait_until_deleted(apiserver)


@pytest.mark.parametrize("keep", [True, False], ids=["crd-kept", "crd-not-kept"])
def test_nothing_is_left_behind_but_the_crd_and_the_key(
    installer: Helm, apiserver: ControlPlane, keep: bool
) -> None:
    before = everything(apiserver)
    release = (RELEASE, str(CHART), *HERE, "--set", f"crds.keep={keep}".lower())
    try:
        installer.run("install", *release)
        created = {name.partition("/")[0] for name in everything(apiserver) - before}
        assert created >= {*BASE, *ROLES}
        installer.run("upgrade", *release, *options([NAMED, "metrics.service.enabled=true"]))
        changed = {name.partition("/")[0] for name in everything(apiserver) - before}
        assert changed >= {*BASE, "Role", "RoleBinding", "Service"}
        assert "ClusterRoleBinding" not in changed
        installer.run("rollback", RELEASE, "1", *HERE)
        assert {name.partition("/")[0] for name in everything(apiserver) - before} == created
        installer.run("uninstall", RELEASE, *HERE)
        if not keep:
            wait_until_deleted(apiserver)
        expect(apiserver, before | ({CRD, f"Secret/{NAMESPACE}/{KEY}"} if keep else set()))
    finally:
        remove(installer, apiserver)


def expect(apiserver: ControlPlane, expected: set[str]) -> None:
    """Objects of the API server's own may still be on their way."""
    found: set[str] = set()

    def as_expected() -> bool:
        nonlocal found
        found = everything(apiserver)
        return found == expected

    eventually(
        as_expected,
        "exactly the objects that are expected",
        lambda: f"left: {sorted(found - expected)}, gone: {sorted(expected - found)}",
    )


def test_the_commands_of_the_page_work_as_they_stand(
    installer: Helm, apiserver: ControlPlane
) -> None:
    """Install, keys, rights, upgrade, rollback, uninstall; there are no nodes to wait for a pod."""
    lines = [
        line
        for block in blocks()
        if block.page == "docs/install.md" and block.language in {"", "bash"}
        for line in block.text.replace("\\\n", " ").splitlines()
        if line.startswith(("helm ", "kubectl ")) and not NEEDS_MORE.search(line)
    ]
    assert len(lines) >= 12
    try:
        for line in lines:
            installer.shell(line)
    finally:
        for name in ("ddpjob-key", "ddpjob-key-2"):
            apiserver.answer("DELETE", f"/api/v1/namespaces/{NAMESPACE}/secrets/{name}")
        remove(installer, apiserver)


@pytest.fixture(scope="module")
def installed(installer: Helm, apiserver: ControlPlane) -> Iterator[Helm]:
    """The chart, once for all tests from here on; each upgrades to the settings that it needs."""
    installer.run("install", RELEASE, str(CHART), *HERE)
    wait_until_served(apiserver)
    yield installer
    remove(installer, apiserver)


def upgrade(installed: Helm, settings: list[str]) -> None:
    installed.run("upgrade", "--reset-values", RELEASE, str(CHART), *HERE, *options(settings))


def test_jobs_outlive_an_uninstallation(installed: Helm, apiserver: ControlPlane) -> None:
    jobs = Jobs(apiserver, "team-a")
    jobs.create(JOB)
    installed.run("uninstall", RELEASE, *HERE)
    installed.run("install", RELEASE, str(CHART), *HERE)
    assert jobs.names() == ["one"]


def test_another_operator_for_other_namespaces_fits_in(installed: Helm) -> None:
    shared = "crds.enabled=false,rbac.userRoles=false"
    upgrade(installed, [NAMED])
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
    installed: Helm,
    apiserver: ControlPlane,
    settings: list[str],
    where: list[str],
    elsewhere: list[str],
) -> None:
    upgrade(installed, settings)
    needed = [
        (verb, group, resource)
        for (group, resource), verbs in ((what.split("/", 1), RULES[what]) for what in RULES)
        for verb in verbs
    ]
    allowed = {Wish(*each, namespace) for each in needed for namespace in where}
    forbidden = {Wish(*each, namespace) for each in MORE for namespace in where}
    forbidden |= {Wish(*each, namespace) for each in needed for namespace in elsewhere}
    wrong: set[Wish] = set()

    def all_as_expected() -> bool:
        nonlocal wrong
        wrong = {wish for wish in allowed | forbidden if may(apiserver, wish) != (wish in allowed)}
        return not wrong

    eventually(all_as_expected, "the operator may do its work and no more", lambda: str(wrong))
    token = token_of(apiserver, RELEASE, NAMESPACE)
    work = {f"{verb} {group}/{resource}" for verb, group, resource in needed}
    for namespace in (*where, *elsewhere, *LEASES):
        here = work if namespace in where or not elsewhere else set()
        rights = EVERY_ACCOUNT | here | LEASES.get(namespace, set())
        assert rights_of(apiserver, token, namespace) == rights, namespace
        secrets = f"/api/v1/namespaces/{namespace}/secrets"
        answered, _ = apiserver.answer("GET", secrets, None, {"Authorization": f"Bearer {token}"})
        assert answered == 403


def rights_of(server: ControlPlane, token: str, namespace: str) -> set[str]:
    """Return all that an account may do in a namespace, as the API server lists it."""
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": namespace},
    }
    path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
    status = server.send("POST", path, review, {"Authorization": f"Bearer {token}"})["status"]
    assert not status["incomplete"], status
    return {
        " ".join([verb, f"{group}/{resource}", *rule.get("resourceNames", [])])
        for rule in status["resourceRules"]
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


def test_the_operators_pod_is_restricted(helm: Helm, apiserver: ControlPlane) -> None:
    pods = f"/api/v1/namespaces/{NAMESPACE}/pods{DRY}"
    pod: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "operator", "namespace": NAMESPACE},
        "spec": copy.deepcopy(pod_of(render(helm, []))),
    }
    apiserver.send("POST", pods, pod)
    del pod["spec"]["containers"][0]["securityContext"]
    status, answer = apiserver.answer("POST", pods, pod)
    assert status == 403
    assert 'violates PodSecurity "restricted' in answer["message"]
