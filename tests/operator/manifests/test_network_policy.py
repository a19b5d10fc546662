"""The NetworkPolicy of a job: which pods it selects, and whom it admits where."""

from __future__ import annotations

import pytest
from kubernetes.client import V1NetworkPolicy

from ddpjob_operator.api.spec import DDPJob
from ddpjob_operator.manifests.network_policy import OperatorPods, build_network_policy
from support.network_policies import EVERY_PORT, Endpoint, endpoint, open_ports
from support.rawpods import (
    JSON,
    TRAIN,
    UID,
    make_cluster_job,
    rendezvous_manifest,
    template_job,
    worker_manifest,
)

OPERATOR = OperatorPods("ddpjob-system", {"app": "ddpjob-operator"})
POLICY = build_network_policy(make_cluster_job(), OPERATOR)
IN_THE_NODES_NETWORK: JSON = {"spec": {"containers": [TRAIN], "hostNetwork": True}}


def namespace(name: str) -> JSON:
    return {"metadata": {"name": name, "labels": {"kubernetes.io/metadata.name": name}}}


def other(where: str, **labels: str) -> Endpoint:
    return endpoint({"metadata": {"labels": labels}, "spec": {}}, namespace(where))


WORKER = endpoint(worker_manifest(), namespace("team"))
RENDEZVOUS = endpoint(rendezvous_manifest(), namespace("team"))


@pytest.mark.parametrize(
    ("source", "ports"),
    [
        pytest.param(WORKER, {EVERY_PORT}, id="worker"),
        pytest.param(RENDEZVOUS, {EVERY_PORT}, id="rendezvous"),
        pytest.param(other("ddpjob-system", app="ddpjob-operator"), {29400}, id="operator"),
        pytest.param(other("team", app="ddpjob-operator"), set(), id="looks_like_the_operator"),
        pytest.param(other("ddpjob-system", app="scraper"), set(), id="beside_the_operator"),
        pytest.param(other("team"), set(), id="stranger"),
        pytest.param(other("team", **{"ddpjob.io/job": "mnist"}), set(), id="other_job"),
        pytest.param(
            other("elsewhere", **{"ddpjob.io/job": "digits"}), set(), id="same_name_elsewhere"
        ),
    ],
)
def test_who_reaches_the_pods_of_a_job(source: Endpoint, ports: set[int | str]) -> None:
    for target in (WORKER, RENDEZVOUS):
        assert open_ports([POLICY], source, target) == ports


def test_it_closes_no_pod_that_is_not_of_the_job() -> None:
    stranger = other("elsewhere")
    for target in (other("team"), other("team", **{"ddpjob.io/job": "mnist"})):
        assert open_ports([POLICY], stranger, target) == {EVERY_PORT}


def test_it_belongs_to_its_job_and_the_api_server_knows_every_field() -> None:
    metadata = POLICY["metadata"]
    assert (metadata["name"], metadata["namespace"]) == ("digits-pods", "team")
    assert metadata["ownerReferences"][0]["uid"] == UID
    assert V1NetworkPolicy.model_validate(POLICY).model_dump(
        by_alias=True, exclude_none=True
    ) == POLICY  # fmt: skip


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(template_job(IN_THE_NODES_NETWORK), id="main_group"),
        pytest.param(
            make_cluster_job(
                extraWorkerGroups=[
                    {"name": "efa", "replicas": 1, "template": {"spec": {"hostNetwork": True}}}
                ]
            ),
            id="extra_group",
        ),
    ],
)
def test_a_job_with_workers_in_their_nodes_network_is_not_cut_in_two(job: DDPJob) -> None:
    """Their packets have the addresses of nodes, which no selector of pods matches."""
    policy = build_network_policy(job, OPERATOR)
    in_the_nodes_network = Endpoint("team", WORKER.labels, {}, host_network=True)
    for pod in (rendezvous_manifest(job), worker_manifest(job)):
        target = endpoint(pod, namespace("team"))
        assert open_ports([policy], in_the_nodes_network, target) == {EVERY_PORT}


@pytest.mark.parametrize("text", ["", "ddpjob-system", "/a=b", "ns/a", "ns/a=b,", "ns/=b"])
def test_a_wrong_setting_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not NAMESPACE/LABEL=VALUE"):
        OperatorPods.parse(text)


def test_the_setting_names_namespace_and_labels() -> None:
    parsed = OperatorPods.parse("ns/app.kubernetes.io/name=x,b=")
    assert parsed == OperatorPods("ns", {"app.kubernetes.io/name": "x", "b": ""})
