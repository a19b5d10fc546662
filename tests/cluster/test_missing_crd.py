"""An operator without the CRD says so, and works as soon as the CRD is there."""

from __future__ import annotations

import uuid
from pathlib import Path

import yaml

from cluster.conftest import CRD, DEFINITION, DEFINITIONS, wait_until_deleted, wait_until_served
from cluster.control_plane import ControlPlane, eventually
from cluster.jobs import Jobs
from cluster.operators import JOB, Operator, objects, running


def install(server: ControlPlane) -> None:
    server.send("POST", DEFINITIONS, yaml.safe_load(CRD.read_text()))
    wait_until_served(server)


def is_missing(operator: Operator) -> bool:
    """Whether it is not ready for this reason, and needs no restart."""
    status, text = operator.get("/readyz")
    named = "the cluster has no resource ddpjobs.ddpjob.io" in text
    return status == 503 and named and operator.get("/healthz")[0] == 200


def test_the_crd_may_come_late_go_and_come_again(apiserver: ControlPlane, tmp_path: Path) -> None:
    namespace = f"test-{uuid.uuid4().hex[:8]}"
    apiserver.create_namespace(namespace)
    jobs = Jobs(apiserver, namespace)
    pods = f"/api/v1/namespaces/{namespace}/pods"
    options = (f"--kubeconfig={apiserver.kubeconfig}", f"--namespace={namespace}")

    def works(operator: Operator) -> None:
        operator.until(lambda: operator.get("/readyz")[0] == 200, "ready")
        jobs.create(JOB)
        operator.until(lambda: len(objects(apiserver, pods)) == 3, "pods")
        apiserver.send("DELETE", pods)

    try:
        with running(tmp_path, *options) as operator:
            operator.until(lambda: is_missing(operator), "the missing CRD is named")
            install(apiserver)
            works(operator)
            apiserver.send("DELETE", DEFINITION)
            wait_until_deleted(apiserver)
            eventually(lambda: operator.process.poll() is not None, "it ends without the CRD")
        with running(tmp_path, *options) as operator:
            operator.until(lambda: is_missing(operator), "the missing CRD is named again")
            install(apiserver)
            works(operator)
    finally:
        apiserver.answer("DELETE", DEFINITION)
        wait_until_deleted(apiserver)
