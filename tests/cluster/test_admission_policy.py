"""The chart's admission policy on a real API server: users with different rights write jobs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cluster.charting import CHART, NAMESPACE, RELEASE, Helm
from cluster.conftest import wait_until_deleted, wait_until_served
from cluster.control_plane import ControlPlane, Object, eventually
from cluster.jobs import API, DRY
from cluster.people import GROUP, RBAC, grant

HERE, OPEN = "admission", "admission-hosts"  # OPEN allows access to nodes
EDITOR, AUTHOR = "edith", "ann"  # both write jobs; only the second may create pods
TRAIN = {"name": "trainer", "image": "trainer", "command": ["torchrun", "train.py"]}
CREATES_PODS: Object = {  # the role `edit` is empty here: a controller adds its rules
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRole",
    "metadata": {"name": "pods-creator"},
    "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["create"]}],
}
NO_PODS = "may not create pods in namespace"
NO_HOST = "does not allow that"
NO_JOBS = "no DDPJob may be in this namespace"


def job(name: str = "digits", **spec: Any) -> Object:
    given = {"image": "trainer", "command": ["torchrun", "train.py"], "replicas": 1, **spec}
    metadata = {"name": name}
    return {
        "apiVersion": "ddpjob.io/v1alpha1",
        "kind": "DDPJob",
        "metadata": metadata,
        "spec": {field: value for field, value in given.items() if value is not None},
    }


def template(container: Object | None = None, **pod: Any) -> Object:
    """A job with a template of its main group."""
    spec = {"containers": [{**TRAIN, **(container or {})}], **pod}
    return job(image=None, command=None, template={"spec": spec})


def group(**pod: Any) -> Object:
    """A job with a template of an extra group."""
    return job(extraWorkerGroups=[{"name": "big", "replicas": 1, "template": {"spec": pod}}])


class People:
    """Users on the API server, all with the role ddpjob-editor."""

    def __init__(self, server: ControlPlane) -> None:
        self.server = server

    def grant(self, user: str, role: str, namespace: str) -> None:
        subject = {"apiGroup": GROUP, "kind": "User", "name": user}
        grant(self.server, subject, role, namespace)

    def write(
        self, user: str, method: str, body: Object, namespace: str = HERE, name: str = ""
    ) -> str:
        """Return why the request is refused; an empty text if it is not. Nothing is stored."""
        path = f"{API}/namespaces/{namespace}/ddpjobs{name and '/'}{name}{DRY}"
        status, answer = self.server.answer(method, path, body, {"Impersonate-User": user})
        return "" if status < 400 else answer["message"]

    def create(self, user: str, body: Object, namespace: str = HERE) -> str:
        return self.write(user, "POST", body, namespace)


@pytest.fixture(scope="module")
def people(apiserver: ControlPlane, installer: Helm) -> Iterator[People]:
    where = ("--namespace", NAMESPACE, "--create-namespace")
    installer.run("install", RELEASE, str(CHART), *where, "--set", "crds.keep=false")
    try:
        wait_until_served(apiserver)
        apiserver.create_namespace(HERE)
        apiserver.create_namespace(OPEN, {"ddpjob.io/host-access": "allowed"})
        people = People(apiserver)
        apiserver.send("POST", f"{RBAC}/clusterroles", CREATES_PODS)
        for namespace in (HERE, OPEN, NAMESPACE, "kube-system"):
            for user in (EDITOR, AUTHOR):
                people.grant(user, "ddpjob-editor", namespace)
            people.grant(AUTHOR, CREATES_PODS["metadata"]["name"], namespace)
        # The API server knows rights and policies a moment after they were written.
        eventually(lambda: people.create(EDITOR, job()) == "", "users may write jobs")
        eventually(lambda: NO_PODS in people.create(EDITOR, template()), "the policy is in force")
        yield people
    finally:
        apiserver.answer("DELETE", f"{RBAC}/clusterroles/pods-creator")
        installer.run("uninstall", RELEASE, "--namespace", NAMESPACE)
        wait_until_deleted(apiserver)


@pytest.mark.parametrize(
    "body", [template(), group(nodeSelector={"a": "b"})], ids=["main", "group"]
)
def test_a_template_needs_the_right_to_create_pods(people: People, body: Object) -> None:
    refusal = people.create(EDITOR, body)
    assert NO_PODS in refusal
    assert EDITOR in refusal
    assert people.create(AUTHOR, body) == ""


HOST_PATH = {"path": "/"}
REACHES_THE_NODE = {
    "network": template(hostNetwork=True),
    "pids": template(hostPID=True),
    "ipc": template(hostIPC=True),
    "path": template(volumes=[{"name": "root", "hostPath": HOST_PATH}]),
    "privileged": template({"securityContext": {"privileged": True}}),
    "privileged_init": template(
        initContainers=[{"name": "a", "image": "b", "securityContext": {"privileged": True}}]
    ),
    "group": group(hostNetwork=True),
    "storage": job(snapshot={"storage": {"hostPath": HOST_PATH}}),
}


@pytest.mark.parametrize("body", REACHES_THE_NODE.values(), ids=REACHES_THE_NODE)
def test_access_to_the_node_needs_a_label_of_the_namespace(people: People, body: Object) -> None:
    refusal = people.create(AUTHOR, body)
    assert NO_HOST in refusal
    assert "ddpjob.io/host-access=allowed" in refusal
    assert people.create(AUTHOR, body, OPEN) == ""


HARMLESS = {
    "short": job(),
    "claim": job(snapshot={"storage": {"persistentVolumeClaim": {"claimName": "c"}}}),
    "off": template(hostNetwork=False, hostPID=False),
    "null": template({"securityContext": None}, volumes=None, initContainers=None),
    "volume": template(volumes=[{"name": "data", "emptyDir": {}}]),
    "group_without_template": job(extraWorkerGroups=[{"name": "big", "replicas": 1}]),
}


@pytest.mark.parametrize("body", HARMLESS.values(), ids=HARMLESS)
def test_what_does_not_reach_the_node_is_accepted(people: People, body: Object) -> None:
    assert people.create(AUTHOR, body) == ""


def test_no_job_is_in_the_namespaces_of_operator_and_control_plane(people: People) -> None:
    for namespace in (NAMESPACE, "kube-system"):
        assert NO_JOBS in people.create(AUTHOR, job(), namespace)


def test_who_may_not_create_pods_may_change_all_but_the_template(people: People) -> None:
    server, path = people.server, f"{API}/namespaces/{HERE}/ddpjobs"
    before = server.send("POST", path, template(), {"Impersonate-User": AUTHOR})
    grown = {**before, "spec": {**before["spec"], "replicas": 0}}
    assert people.write(EDITOR, "PUT", grown, name="digits") == ""
    changed = {**template({"image": "other"}), "metadata": before["metadata"]}
    assert NO_PODS in people.write(EDITOR, "PUT", changed, name="digits")
    assert people.write(AUTHOR, "PUT", changed, name="digits") == ""
    hosts = {**template(hostNetwork=True), "metadata": before["metadata"]}
    assert NO_HOST in people.write(AUTHOR, "PUT", hosts, name="digits")
    server.send("DELETE", f"{path}/digits")


def test_a_job_stays_changeable_when_its_namespace_loses_the_label(people: People) -> None:
    """Otherwise its finalizers could not be removed, and it could not be suspended."""
    server, path = people.server, f"{API}/namespaces/{OPEN}/ddpjobs"
    before = server.send("POST", path, template(hostNetwork=True))
    server.create_namespace(OPEN)
    try:
        refused = template(hostPID=True)
        eventually(lambda: NO_HOST in people.create(AUTHOR, refused, OPEN), "the label is gone")
        paused = {**before, "spec": {**before["spec"], "suspend": True}}
        assert people.write(EDITOR, "PUT", paused, OPEN, "digits") == ""
    finally:
        server.create_namespace(OPEN, {"ddpjob.io/host-access": "allowed"})
        server.send("DELETE", f"{path}/digits")
        eventually(lambda: people.create(AUTHOR, refused, OPEN) == "", "the label is there")
