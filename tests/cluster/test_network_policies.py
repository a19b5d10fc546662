"""Who may connect to whom, by the NetworkPolicies that the API server has: a table of pairs of pods.

No network plugin runs here. `support.network_policies` computes what the stored objects allow.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cluster.charting import NAMESPACE, Helm, of_kind, render
from cluster.control_plane import ControlPlane, Object
from ddpjob_operator.api.spec import DDPJob
from ddpjob_operator.manifests.build import build_rendezvous, build_worker
from ddpjob_operator.manifests.network_policy import OperatorPods, build_network_policy
from ddpjob_operator.planner.actions import CreateRendezvous, CreateWorker
from support.builders import make_job
from support.keys import KEY
from support.network_policies import EVERY_PORT, Endpoint, endpoint, open_ports

HERE, ELSEWHERE = "pairs", "pairs-elsewhere"
EVERY: set[int | str] = {EVERY_PORT}
NONE: set[int | str] = set()
SERVICE: set[int | str] = {29400}
OPERATORS_PORTS: set[int | str] = {8080, 9090}


def job_in(namespace: str, name: str = "digits") -> DDPJob:
    job = make_job(image="trainer")
    return job.model_copy(
        update={
            "metadata": job.metadata.model_copy(
                update={"namespace": namespace, "name": name, "uid": f"uid-of-{name}"}
            )
        }
    )


def bare_pod(**labels: str) -> Object:
    metadata = {"generateName": "pod-", "labels": labels}
    spec = {"containers": [{"name": "main", "image": "any"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def stored(server: ControlPlane, namespace: str, plural: str, manifest: Object) -> Object:
    """The object as the API server has it after its creation."""
    prefix = "/api/v1" if plural == "pods" else "/apis/networking.k8s.io/v1"
    path = f"{prefix}/namespaces/{namespace}/{plural}?fieldValidation=Strict"
    return server.send("POST", path, manifest)


class Cluster:
    """The pods of the table by name, and all policies."""

    def __init__(self, server: ControlPlane, helm: Helm) -> None:
        self._server = server
        chart = render(helm, [])
        [deployment], [policy] = of_kind(chart, "Deployment"), of_kind(chart, "NetworkPolicy")
        [setting] = [
            word.partition("=")[2]
            for word in deployment["spec"]["template"]["spec"]["containers"][0]["args"]
            if word.startswith("--network-policies=")
        ]
        operator_pods = OperatorPods.parse(setting)
        operator = bare_pod(**deployment["spec"]["template"]["metadata"]["labels"])
        for name in (HERE, ELSEWHERE, NAMESPACE):
            server.create_namespace(name)
        digits, mnist, twin = job_in(HERE), job_in(HERE, "mnist"), job_in(ELSEWHERE)
        self.policies = [
            stored(server, NAMESPACE, "networkpolicies", policy),
            *(
                stored(
                    server,
                    each.metadata.namespace,
                    "networkpolicies",
                    build_network_policy(each, operator_pods),
                )
                for each in (digits, mnist, twin)
            ),
        ]
        self.pods: dict[str, Endpoint] = {
            "worker": self._pod(HERE, worker(digits, 0)),
            "worker-2": self._pod(HERE, worker(digits, 1)),
            "rendezvous": self._pod(
                HERE,
                build_rendezvous(
                    digits, CreateRendezvous("digits-rendezvous-1", 1), "a", KEY, "keys"
                ),
            ),
            "other job": self._pod(HERE, worker(mnist, 0)),
            "same name elsewhere": self._pod(ELSEWHERE, worker(twin, 0)),
            "stranger": self._pod(HERE, bare_pod(app="web")),
            "stranger elsewhere": self._pod(ELSEWHERE, bare_pod(app="web")),
            "operator": self._pod(NAMESPACE, operator),
            "beside the operator": self._pod(NAMESPACE, bare_pod(app="web")),
            "false operator": self._pod(
                ELSEWHERE, bare_pod(**deployment["spec"]["template"]["metadata"]["labels"])
            ),
        }

    def _pod(self, namespace: str, manifest: Object) -> Endpoint:
        made = stored(self._server, namespace, "pods", manifest)
        return endpoint(made, self._server.get(f"/api/v1/namespaces/{namespace}"))

    def clean(self) -> None:
        for namespace in (HERE, ELSEWHERE, NAMESPACE):
            for path in (
                "/api/v1/namespaces/{}/pods",
                "/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies",
            ):
                self._server.send("DELETE", path.format(namespace))


def worker(job: DDPJob, index: int) -> dict[str, Any]:
    name = f"{job.metadata.name}-worker-00{index}-1"
    return build_worker(job, CreateWorker(name, "worker", index, 1), "agent", KEY, "keys")


@pytest.fixture(scope="module")
def cluster(apiserver: ControlPlane, helm: Helm) -> Iterator[Cluster]:
    made = Cluster(apiserver, helm)
    yield made
    made.clean()


# A row for each source. Columns: worker, rendezvous, other job, operator, stranger.
TARGETS = ("worker", "rendezvous", "other job", "operator", "stranger")
TABLE: dict[str, tuple[set[int | str], ...]] = {
    "worker": (EVERY, EVERY, NONE, OPERATORS_PORTS, EVERY),
    "worker-2": (EVERY, EVERY, NONE, OPERATORS_PORTS, EVERY),
    "rendezvous": (EVERY, EVERY, NONE, OPERATORS_PORTS, EVERY),
    "other job": (NONE, NONE, EVERY, OPERATORS_PORTS, EVERY),
    "same name elsewhere": (NONE, NONE, NONE, OPERATORS_PORTS, EVERY),
    "stranger": (NONE, NONE, NONE, OPERATORS_PORTS, EVERY),
    "stranger elsewhere": (NONE, NONE, NONE, OPERATORS_PORTS, EVERY),
    "operator": (SERVICE, SERVICE, SERVICE, OPERATORS_PORTS, EVERY),
    "beside the operator": (NONE, NONE, NONE, OPERATORS_PORTS, EVERY),
    "false operator": (NONE, NONE, NONE, OPERATORS_PORTS, EVERY),
}


def test_who_may_connect_to_whom(cluster: Cluster) -> None:
    found = {
        source: tuple(
            open_ports(cluster.policies, cluster.pods[source], cluster.pods[target])
            for target in TARGETS
        )
        for source in cluster.pods
    }
    assert found == TABLE
