"""Several operators, one of which leads: nobody else writes, however the leader is disturbed.

Each operator has an account of its own, so that the API server's audit log tells who wrote what.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from cluster.control_plane import ControlPlane, eventually
from cluster.jobs import Jobs
from cluster.operators import JOB, Operator, audited, objects, running
from cluster.people import token_of
from ddpjob_operator.controller.metrics.catalogue import LEADS
from ddpjob_operator.local.simulated.rendezvous_process import free_port

WRITES = ("create", "update", "patch", "delete", "deletecollection")
REPLICAS = 2
PODS = REPLICAS + 1


class Candidates:
    """Operators with accounts of their own, which share one Lease."""

    def __init__(self, jobs: Jobs, folder: Path) -> None:
        self._server, self._jobs, self._folder = jobs.server, jobs, folder
        self.pages: dict[str, int] = {}  # ports of the web pages

    @contextlib.contextmanager
    def start(self, name: str, role: str) -> Iterator[Operator]:
        """An operator, once it is ready in this role."""
        folder = self._folder / name
        folder.mkdir()
        namespace = self._jobs.namespace
        self.pages[name] = free_port()
        options = (
            f"--web-port={self.pages[name]}",
            f"--kubeconfig={self._account(name, folder)}",
            f"--namespace={namespace}",
            f"--lease={namespace}/operator",
        )
        with running(folder, *options) as operator:
            operator.until(lambda: has_role(operator, role), f"{name} is {role}")
            yield operator

    def _account(self, name: str, folder: Path) -> Path:
        """A kubeconfig of a new account that may do everything."""
        server, namespace = self._server, self._jobs.namespace
        accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
        server.send("POST", accounts, {"metadata": {"name": name}})
        subject = {"kind": "ServiceAccount", "name": name, "namespace": namespace}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole"}
        binding = {
            "metadata": {"name": f"{namespace}-{name}"},
            "roleRef": {**role, "name": "cluster-admin"},
            "subjects": [subject],
        }
        server.send("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding)
        access = yaml.safe_load(server.kubeconfig.read_text())
        access["users"][0]["user"] = {"token": token_of(server, name, namespace)}
        path = folder / "kubeconfig"
        path.write_text(yaml.safe_dump(access))
        return path

    def write_times(self, name: str, *, of_lease: bool) -> list[str]:
        """When the API server received the writes of an operator that it executed."""
        user = f"system:serviceaccount:{self._jobs.namespace}:{name}"
        return [
            entry["requestReceivedTimestamp"]
            for entry in audited(self._server)
            if entry["user"].get("username") == user
            and entry["verb"] in WRITES
            and (entry["objectRef"]["resource"] == "leases") is of_lease
            and entry["responseStatus"]["code"] < 300
        ]

    def late_writes(self, old: str, new: str) -> list[str]:
        """Those of the old leader after the new one had taken the Lease."""
        taken = self.write_times(new, of_lease=True)[0]
        return [time for time in self.write_times(old, of_lease=False) if time > taken]


def has_role(operator: Operator, role: str) -> bool:
    status, text = operator.get("/readyz")
    return status == 200 and text.startswith(f"ok: {role}")


def leads_by_metrics(operator: Operator) -> float:
    families = text_string_to_metric_families(operator.get("/metrics", operator.metrics)[1])
    [sample] = [s for f in families for s in f.samples if s.name == LEADS.name]
    return sample.value


def shows_jobs(operator: Operator, port: int, count: int) -> bool:
    """Whether the list of the web page has so many jobs."""
    return f"<p>{count} jobs" in operator.get("/", port)[1]


@pytest.fixture
def candidates(jobs: Jobs, tmp_path: Path) -> Candidates:
    return Candidates(jobs, tmp_path)


def create(jobs: Jobs, name: str) -> None:
    job: dict[str, Any] = copy.deepcopy(JOB)
    job["metadata"]["name"] = name
    job["spec"]["replicas"] = REPLICAS
    jobs.create(job)


def count_pods(jobs: Jobs) -> int:
    return len(objects(jobs.server, f"/api/v1/namespaces/{jobs.namespace}/pods"))


def test_a_leader_that_was_paused_writes_nothing_after_its_successor(
    candidates: Candidates, jobs: Jobs
) -> None:
    count = 12
    with candidates.start("first", "leader") as old, candidates.start("second", "standby") as new:
        for number in range(count):
            create(jobs, f"job-{number}")
        old.until(lambda: count_pods(jobs) > PODS, "it is at work")
        old.process.send_signal(signal.SIGSTOP)
        new.until(lambda: has_role(new, "leader"), "the standby leads")
        new.until(lambda: count_pods(jobs) == count * PODS, "it does the rest")
        old.process.send_signal(signal.SIGCONT)
        eventually(lambda: old.process.poll() is not None, "the old leader ends")
        assert old.process.returncode == 3
        assert "is lost: " in old.log.read_text()
    assert candidates.write_times("first", of_lease=False)
    assert candidates.late_writes("first", "second") == []


def test_a_leader_that_stops_or_dies_has_a_successor(
    candidates: Candidates, jobs: Jobs, apiserver: ControlPlane
) -> None:
    lease = f"/apis/coordination.k8s.io/v1/namespaces/{jobs.namespace}/leases/operator"
    with (
        candidates.start("first", "leader") as first,
        candidates.start("second", "standby") as second,
    ):
        for number in range(4):
            create(jobs, f"job-{number}")
        first.until(lambda: count_pods(jobs) > 0, "it is at work")
        assert (leads_by_metrics(first), leads_by_metrics(second)) == (1, 0)
        for name, each in (("first", first), ("second", second)):
            each.until(functools.partial(shows_jobs, each, candidates.pages[name], 4), "its page")
        first.process.terminate()
        second.until(lambda: has_role(second, "leader"), "the standby leads")
        second.until(lambda: leads_by_metrics(second) == 1, "its metric shows it")
        assert first.process.wait(60) == 0, first.log.read_text()
        assert "released the Lease" in first.log.read_text()
        assert candidates.late_writes("first", "second") == []
        second.until(lambda: count_pods(jobs) == 4 * PODS, "it does the rest")
        with candidates.start("third", "standby") as third:
            second.process.kill()
            third.until(lambda: has_role(third, "leader"), "the next one leads")
            create(jobs, "late")
            third.until(lambda: count_pods(jobs) == 5 * PODS, "it works")
            assert apiserver.get(lease)["spec"]["leaseTransitions"] == 2
