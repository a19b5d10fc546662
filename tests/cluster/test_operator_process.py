"""The operator as its users start it: a process, with kopf, against a real API server.

What it writes is read from the API server's own audit log. Nodes are played as in the stories of
tests/support/reconciling; nobody reaches a rendezvous service here.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cluster.control_plane import HTTP_AGENT, ControlPlane
from cluster.jobs import Jobs
from cluster.operators import JOB, OPERATOR, Operator, audited, objects, running
from ddpjob_operator.controller.metrics.catalogue import EVENTS
from ddpjob_operator.controller.metrics.catalogue import OPERATOR as OPERATOR_METRICS
from ddpjob_operator.kube.client import KubeClient
from support.reconciling.nodes import Nodes

USER_AGENT = "ddpjob-operator"
OWN_ANNOTATIONS = {  # of the pods as they were created
    "kubectl.kubernetes.io/default-container",
    "cluster-autoscaler.kubernetes.io/safe-to-evict",
    "linkerd.io/inject",
}


@pytest.fixture
def earlier(apiserver: ControlPlane) -> int:
    """How many requests there were before the operator started."""
    return len(audited(apiserver))


@pytest.fixture
def operator(
    apiserver: ControlPlane, namespace: str, earlier: int, tmp_path: Path
) -> Iterator[Operator]:
    """Watches the test's namespace, and is ready."""
    options = (f"--kubeconfig={apiserver.kubeconfig}", f"--namespace={namespace}")
    with running(tmp_path, *options) as operator:
        operator.until(lambda: operator.get("/readyz")[0] == 200, "ready")
        yield operator


def let_nodes_act(apiserver: ControlPlane, namespace: str) -> None:
    """One turn of scheduler and kubelets."""

    async def turn() -> None:
        kube = await KubeClient.connect(str(apiserver.kubeconfig))
        try:
            await Nodes(kube, [namespace]).turn()
        finally:
            await kube.close()

    asyncio.run(turn())


def test_a_job_is_worked_on_without_a_trace_on_it(
    operator: Operator, apiserver: ControlPlane, jobs: Jobs, earlier: int
) -> None:
    namespace, base = jobs.namespace, f"/api/v1/namespaces/{jobs.namespace}"

    def running() -> set[str]:
        """UIDs."""
        let_nodes_act(apiserver, namespace)
        found = objects(apiserver, f"{base}/pods").values()
        return {pod["metadata"]["uid"] for pod in found if pod["status"]["phase"] == "Running"}

    assert operator.get("/healthz") == (200, "ok\n")
    apiserver.kubectl("apply", "-n", namespace, "-f", "-", stdin=json.dumps(JOB))
    operator.until(lambda: len(running()) == 3, "three pods run")
    old = apiserver.get(f"{base}/pods/digits-worker-001-1")["metadata"]["uid"]
    apiserver.send("DELETE", f"{base}/pods/digits-worker-001-1")
    operator.until(lambda: len(now := running()) == 3 and old not in now, "a replacement")
    for path in (f"{base}/pods", f"{base}/services", jobs.path):
        for name, each in objects(apiserver, path).items():
            assert "finalizers" not in each["metadata"], name
            annotations = set(each["metadata"].get("annotations", ()))
            by_kubectl = "kubectl.kubernetes.io/last-applied-configuration"
            assert annotations <= {*OWN_ANNOTATIONS, by_kubectl}, name
    code, text = operator.get("/metrics", operator.metrics)
    assert code == 200
    assert scraped(text) >= {metric.name for metric in OPERATOR_METRICS if metric is not EVENTS}
    assert 'controller_runtime_reconcile_total{controller="ddpjob",result="success"} ' in text
    assert 'ddpjob_jobs{state="Waiting"} 1.0' in text
    own = f'namespace="{namespace}",name="digits"'
    assert f'ddpjob_job_state{{{own},state="Waiting"}} 1.0' in text
    assert f"ddpjob_job_workers_wanted{{{own}}} 2.0" in text

    apiserver.send("DELETE", f"{jobs.path}/digits")
    operator.until(lambda: jobs.names() == [], "the job is gone")
    operator.until(lambda: "ddpjob_jobs{" not in counted(operator), "the job is forgotten")
    assert 'name="digits"' not in operator.get("/metrics", operator.metrics)[1]
    operator.process.send_signal(signal.SIGTERM)
    assert operator.process.wait(60) == 0, operator.log.read_text()
    lines = [line.partition(" INFO ")[2] for line in operator.log.read_text().splitlines()]
    started, ready, first, *_ = filter(None, lines)
    assert started.startswith("ddpjob starting version=")
    assert started.endswith(f" image=x namespaces={namespace}")
    assert ready == "ddpjob.controller ready: pods and services are listed"
    created = "created the first pods workers=2"
    assert first == f"ddpjob.reconciler {namespace}/digits: {created}"
    assert operator.log.read_text().count(created) == 1

    entries = audited(apiserver)[earlier:]
    mine = Counter(
        (entry["verb"], entry["objectRef"]["resource"])
        for entry in entries
        if USER_AGENT in entry.get("userAgent", "") and "objectRef" in entry
    )
    assert mine["create", "pods"] >= 4
    assert mine["update", "ddpjobs"] >= 2
    assert [e["objectRef"] for e in entries if e["verb"] == "patch" and is_operators(e)] == []
    assert any(e["verb"] == "watch" and is_operators(e) for e in entries)


def scraped(text: str) -> set[str]:
    """The names of the metrics that have a value, as they are documented."""
    return {
        family.name + ("_total" if family.type == "counter" else "")
        for family in text_string_to_metric_families(text)
        if family.samples
    }


def is_operators(entry: dict[str, Any]) -> bool:
    """Whether the operator, or kopf in it, may have sent it: they share an account with the test."""
    by_test = str(entry.get("userAgent", "")).startswith(("kubectl", HTTP_AGENT))
    return entry["user"].get("username") == "admin" and not by_test


def counted(operator: Operator) -> str:
    """The jobs that it knows of, by state."""
    lines = operator.get("/metrics", operator.metrics)[1].splitlines()
    return "\n".join(
        line for line in lines if line.startswith("ddpjob_jobs{") and "} 0.0" not in line
    )


def test_jobs_that_are_there_before_it_comes_are_worked_on(
    apiserver: ControlPlane, jobs: Jobs, tmp_path: Path
) -> None:
    pods = f"/api/v1/namespaces/{jobs.namespace}/pods"
    jobs.create(JOB)
    options = (f"--kubeconfig={apiserver.kubeconfig}", f"--namespace={jobs.namespace}")
    for life in ("first", "second"):
        with running(tmp_path, *options) as operator:
            operator.until(lambda: len(objects(apiserver, pods)) == 3, "pods")
            if life == "second":
                operator.until(lambda: 'state="Waiting"} 1.0' in counted(operator), "a pass")
    names = set(objects(apiserver, pods))
    assert names == {"digits-rendezvous-1", "digits-worker-000-1", "digits-worker-001-1"}


def test_a_wrong_kubeconfig_ends_it_at_once_with_clear_words(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text("apiVersion: v1\nkind: Config\ncurrent-context: none\n")
    command = [str(OPERATOR), "operator", "run", "--agent-image=x", f"--kubeconfig={path}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2, done.stderr
    assert f"\nddpjob operator: the kubeconfig {path} cannot be used" in done.stderr
    assert "Traceback" not in done.stderr
