"""A cluster with the operator installed by Helm, and namespaces for those who ask.

`make test-e2e` makes the development cluster and the images. To run against another cluster, set
DDPJOB_E2E_KUBECONFIG and the images (docs/development-cluster.md); then nothing is made here.
"""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from e2e.kubectl import Kubectl
from e2e.namespaces import Namespaces
from e2e.nodes import Nodes
from e2e.volumes import Volumes

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "ddpjob-operator"
SYSTEM = "ddpjob-system"
CONTROL_PLANE = "node-role.kubernetes.io/control-plane"


class Images(NamedTuple):
    """What the cluster's nodes can pull, or have."""

    operator: str
    agent: str
    digits: str  # the trainer library and examples/digits


@pytest.fixture(scope="session")
def images() -> Images:
    return Images(
        *(os.environ[f"DDPJOB_E2E_{name}_IMAGE"] for name in ("OPERATOR", "AGENT", "DIGITS"))
    )


@pytest.fixture(scope="session")
def kubeconfig() -> Path:
    return Path(os.environ["DDPJOB_E2E_KUBECONFIG"])


@pytest.fixture(scope="session")
def session_name() -> str:
    """What names the objects of this session and of no other one."""
    return f"ddpjob-test-{uuid.uuid4().hex[:6]}"


@pytest.fixture(scope="session")
def operator(kubeconfig: Path, images: Images) -> Iterator[Kubectl]:
    """The operator, installed as users install it, away from the nodes that are broken."""
    kubectl = Kubectl(kubeconfig, SYSTEM)
    if policy := os.environ.get("DDPJOB_E2E_POLICY"):
        kubectl("apply", "-f", policy)
    helm(
        kubeconfig,
        *("upgrade", "--install", "ddpjob-operator", str(CHART), "--create-namespace"),
        *(*settings_for(images), "--wait", "--timeout", "5m"),
    )
    yield kubectl
    helm(kubeconfig, "uninstall", "ddpjob-operator", "--wait", "--timeout", "5m")


def settings_for(images: Images) -> list[str]:
    """Words for helm: an operator of these images, on the control plane if it may run there."""
    repository, _, tag = images.operator.rpartition(":")
    agent_repository, _, agent_tag = images.agent.rpartition(":")
    values = {
        "podAnnotations.session": uuid.uuid4().hex,  # a pod of the image that is there now
        "image.repository": repository,
        "image.tag": tag,
        "image.pullPolicy": "IfNotPresent",
        "agentImage.repository": agent_repository,
        "agentImage.tag": agent_tag,
        "tolerations[0].key": CONTROL_PLANE,
        "tolerations[0].operator": "Exists",
        "affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight": "100",
        "affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0]"
        ".preference.matchExpressions[0].key": CONTROL_PLANE,
        "affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0]"
        ".preference.matchExpressions[0].operator": "Exists",
    }
    return [word for name, value in values.items() for word in ("--set", f"{name}={value}")]


@pytest.fixture(scope="session")
def volumes(
    operator: Kubectl, kubeconfig: Path, images: Images, session_name: str
) -> Iterator[Volumes]:
    """Volumes whose folders every node sees the same."""
    volumes = Volumes(session_name, os.environ["DDPJOB_E2E_SHARED_FOLDER"], images.digits)
    yield volumes
    volumes.remove(Kubectl(kubeconfig, "default"))


@pytest.fixture(scope="session")
def namespaces(volumes: Volumes, kubeconfig: Path, session_name: str) -> Iterator[Namespaces]:
    """Namespaces, all of which are gone before the volumes go."""
    namespaces = Namespaces(kubeconfig, session_name)
    yield namespaces
    namespaces.until_gone()


@pytest.fixture
def kubectl(namespaces: Namespaces) -> Iterator[Kubectl]:
    """kubectl in a namespace of the test's own."""
    kubectl = namespaces.new()
    yield kubectl
    namespaces.leave(kubectl)


@pytest.fixture(scope="module")
def namespace(namespaces: Namespaces) -> Iterator[Callable[[], Kubectl]]:
    """Makes namespaces that the tests of one module share."""
    made: list[Kubectl] = []

    def make() -> Kubectl:
        made.append(namespaces.new())
        return made[-1]

    yield make
    for kubectl in made:
        namespaces.leave(kubectl)


@pytest.fixture
def nodes(operator: Kubectl, kubeconfig: Path) -> Iterator[Nodes]:
    """The nodes, which are as they were when the test ends."""
    nodes = Nodes(Kubectl(kubeconfig))
    yield nodes
    nodes.restore()


def helm(kubeconfig: Path, *arguments: str, namespace: str = SYSTEM) -> str:
    """Run helm, in the operator's namespace by default; return its output."""
    head = ["helm", "--kubeconfig", str(kubeconfig), "--namespace", namespace]
    done = subprocess.run([*head, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"helm {arguments[0]}: {done.stderr}{done.stdout}"
    return done.stdout
