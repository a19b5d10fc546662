"""A real API server and the CRD for all tests of this tier; a namespace for a test."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
import yaml

from cluster.charting import Helm
from cluster.control_plane import ROOT, ControlPlane, control_plane, eventually
from cluster.jobs import ALL_JOBS, Jobs

CRD = ROOT / "crds" / "ddpjobs.yaml"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
DEFINITION = f"{DEFINITIONS}/ddpjobs.ddpjob.io"


@pytest.fixture(scope="session")
def apiserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with control_plane(tmp_path_factory.mktemp("control-plane")) as server:
        yield server


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """For rendering. It has no API server: the kubeconfig does not exist."""
    folder = tmp_path_factory.mktemp("helm")
    return Helm(folder, folder / "kubeconfig")


@pytest.fixture(scope="session")
def installer(apiserver: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """For releases on the API server."""
    return Helm(tmp_path_factory.mktemp("installer"), apiserver.kubeconfig)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let tests that install the CRD themselves come before those that find it."""
    items.sort(key=lambda item: "crd" in getattr(item, "fixturenames", ()))


@pytest.fixture(scope="session")
def crd(apiserver: ControlPlane) -> None:
    """DDPJobs can be made, from here on."""
    definition = yaml.safe_load(CRD.read_text())
    apiserver.send("POST", f"{DEFINITIONS}?fieldValidation=Strict", definition)
    wait_until_served(apiserver)


def wait_until_served(server: ControlPlane) -> None:
    """Until jobs can be created."""
    eventually(lambda: server.answer("GET", ALL_JOBS)[0] == 200, "DDPJobs are served")


def wait_until_deleted(server: ControlPlane) -> None:
    """Until the CRD is gone, with all jobs."""
    eventually(lambda: server.answer("GET", DEFINITION)[0] == 404, "the CRD is gone")


@pytest.fixture
def namespace(apiserver: ControlPlane, crd: None) -> str:
    """A namespace of the test's own."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    apiserver.create_namespace(name)
    return name


@pytest.fixture
def jobs(apiserver: ControlPlane, namespace: str) -> Jobs:
    """No jobs yet, in a namespace of the test's own."""
    return Jobs(apiserver, namespace)
