"""A real API server for all tests of this tier; the CRD for a module; a namespace for a test."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from cluster.control_plane import ROOT, ApiServer, control_plane

CRD = ROOT / "crds" / "ddpjobs.yaml"


@pytest.fixture(scope="session")
def apiserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with control_plane(tmp_path_factory.mktemp("control-plane")) as server:
        yield server


@pytest.fixture(scope="module")
def crd(apiserver: ApiServer) -> Iterator[None]:
    """DDPJobs can be made. Gone with the module, as others install the chart."""
    apiserver.kubectl("create", "--validate=strict", "-f", str(CRD))
    established = ("--for=condition=Established", "--timeout=120s")
    apiserver.kubectl("wait", *established, "crd/ddpjobs.ddpjob.io")
    yield
    apiserver.kubectl("delete", "--wait", "-f", str(CRD))


@pytest.fixture
def namespace(apiserver: ApiServer, crd: None) -> str:
    """A namespace of the test's own. It stays: without controllers none is ever quite deleted."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    apiserver.kubectl("create", "namespace", name)
    return name
