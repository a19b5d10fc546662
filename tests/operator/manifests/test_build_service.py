"""The rendezvous pod and its Service; and that the API server knows every field of all of them."""

from __future__ import annotations

import base64
import re
from typing import Any

import pytest
from kubernetes.client import V1Pod, V1Service
from pydantic import ValidationError

from ddpjob_operator.api.spec.pinned_fields import revision
from ddpjob_operator.manifests.build import build_service
from ddpjob_operator.manifests.parse import parse_pod
from ddpjob_operator.manifests.secrets import build_secret
from support.keys import KEY
from support.rawpods import (
    IMAGE,
    JSON,
    SIDE,
    TRAIN,
    UID,
    make_cluster_job,
    mounts,
    raw_pod,
    rendezvous_manifest,
    template_job,
    templated,
    trainer,
    values,
    volume,
    worker_manifest,
)

ENDING = {"deletionTimestamp": "2026-01-02T03:04:05Z"}
LABELS = {"ddpjob.io/job": "digits", "ddpjob.io/role": "rendezvous"}


def job_with(**spec: Any) -> JSON:
    """The rendezvous pod of a job whose template has this in its spec."""
    template: JSON = {"spec": {"containers": [TRAIN], **spec}}
    return rendezvous_manifest(template_job(template))


def test_rendezvous_pod_is_safe() -> None:
    spec = rendezvous_manifest()["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"] == {"seccompProfile": {"type": "RuntimeDefault"}}
    assert trainer({"spec": spec}, "rendezvous")["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
    }


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        pytest.param({}, 50, id="default"),
        pytest.param({"terminationGracePeriodSeconds": 600}, 605, id="given"),
        pytest.param({"terminationGracePeriodSeconds": "long"}, 50, id="refused with the workers"),
    ],
)
def test_rendezvous_pod_may_outlive_the_workers(given: JSON, seconds: int) -> None:
    """If the job is deleted, they need it until they have ended."""
    assert job_with(**given)["spec"]["terminationGracePeriodSeconds"] == seconds


def test_rendezvous_pod_knows_its_memory() -> None:
    container = trainer(rendezvous_manifest(), "rendezvous")
    source = {"resourceFieldRef": {"resource": "limits.memory"}}
    assert {"name": "DDPJOB_MEMORY_BYTES", "valueFrom": source} in container["env"]
    assert container["resources"]["limits"]["memory"] == "256Mi"


def test_rendezvous_pod_says_which_one_it_is_and_counts_its_starts() -> None:
    pod = rendezvous_manifest(term=7)
    assert pod["metadata"]["name"] == "digits-rendezvous-7"
    labels = pod["metadata"]["labels"]
    made_from = revision(make_cluster_job().spec)
    of_the_pod = {"ddpjob.io/term": "7", "ddpjob.io/key": KEY.fingerprint}
    expected = {**LABELS, **of_the_pod, "ddpjob.io/revision": made_from}
    assert labels.items() >= expected.items()
    assert labels["app.kubernetes.io/component"] == "rendezvous"
    assert pod["metadata"]["ownerReferences"][0]["uid"] == UID
    assert pod["spec"]["restartPolicy"] == "Always"
    container = trainer(pod, "rendezvous")
    assert container["image"] == IMAGE
    words = container["command"]
    assert words[:3] == ["python3", "/opt/ddpjob/agent.pyz", "rendezvous"]
    options = dict(zip(words[3::2], words[4::2], strict=True))
    assert options == {"--port": "29400", "--term": "7", "--boot-file": "/state/boot"}
    assert mounts(container) == {"/state": "state", "/keys": "ddpjob-keys"}
    assert volume(pod, "state") == {"emptyDir": {}}


def test_a_reader_of_pods_learns_no_key() -> None:
    """Only the Secret has the keys; a service has that of its job, a worker its own."""
    job = make_cluster_job()
    for pod, known in (
        (rendezvous_manifest(job), KEY.to_text()),
        (worker_manifest(job), KEY.worker_keys("digits-worker-000-2").to_text()),
    ):
        stored = parse_pod(raw_pod(pod, {"phase": "Pending"}, uid="one"))
        secret = build_secret(job, stored, KEY)
        name = secret["metadata"]["name"]
        assert volume(pod, "ddpjob-keys") == {"secret": {"secretName": name}}
        assert base64.b64decode(secret["data"]["keys"]).decode() == known
        owner = {"apiVersion": "v1", "kind": "Pod", "name": stored.name, "uid": "one"}
        assert secret["metadata"]["ownerReferences"] == [owner]
        for key in re.findall("[0-9a-f]{64}", known):
            assert key not in str(pod)
        assert pod["metadata"]["labels"]["ddpjob.io/key"] == KEY.fingerprint


def test_only_the_init_container_of_a_worker_sees_its_secret() -> None:
    pod = worker_manifest()
    (install,) = pod["spec"]["initContainers"]
    assert mounts(install) == {"/ddpjob": "ddpjob-agent", "/keys": "ddpjob-keys"}
    assert install["command"] == ["cp", "/opt/ddpjob/agent.pyz", "/keys/keys", "/ddpjob/"]
    assert "ddpjob-keys" not in mounts(trainer(pod)).values()
    assert values(trainer(pod))["DDPJOB_KEYS"] == "/ddpjob/keys"


def test_a_pod_that_has_started_or_ends_needs_no_secret() -> None:
    pod = worker_manifest()
    for status, metadata in (({"phase": "Running"}, {}), ({"phase": "Pending"}, ENDING)):
        assert parse_pod(raw_pod(pod, status, **metadata)).secret == ""


def test_rendezvous_pod_is_ready_when_it_answers() -> None:
    container = trainer(rendezvous_manifest(), "rendezvous")
    assert container["readinessProbe"]["httpGet"] == {"path": "/healthz", "port": "rendezvous"}
    assert container["ports"] == [{"name": "rendezvous", "containerPort": 29400}]


def test_rendezvous_pod_leaves_a_silent_node_soon_and_prefers_one_without_workers() -> None:
    spec = rendezvous_manifest()["spec"]
    assert {each["tolerationSeconds"] for each in spec["tolerations"]} == {5}
    (term,) = spec["affinity"]["podAntiAffinity"].values()
    matched = {"ddpjob.io/job": "digits", "ddpjob.io/role": "worker"}
    assert term[0]["podAffinityTerm"]["labelSelector"]["matchLabels"] == matched


@pytest.mark.parametrize(
    ("field", "value"),
    [
        pytest.param("imagePullSecrets", [{"name": "pull"}], id="pull_secret"),
        pytest.param("priorityClassName", "high", id="priority"),
        pytest.param("schedulerName", "volcano", id="scheduler"),
    ],
)
def test_rendezvous_pod_takes_from_the_template(field: str, value: Any) -> None:
    assert job_with(**{field: value})["spec"][field] == value
    assert field not in rendezvous_manifest()["spec"]


def test_rendezvous_pod_may_go_where_workers_may() -> None:
    gpu = {"key": "nvidia.com/gpu", "operator": "Exists"}
    tolerations = job_with(tolerations=[gpu])["spec"]["tolerations"]
    assert tolerations[-1] == gpu
    assert len(tolerations) == 3


@pytest.mark.parametrize(
    "own",
    [
        [{"operator": "Exists"}],
        [{"key": "node.kubernetes.io/unreachable", "operator": "Exists", "tolerationSeconds": 300}],
        [{"operator": "Exists", "effect": "NoExecute"}],
    ],
)
def test_tolerations_of_workers_keep_no_rendezvous_pod_on_a_lost_node(own: list[Any]) -> None:
    """Kubernetes uses the first toleration that matches."""
    tolerations = job_with(tolerations=own)["spec"]["tolerations"]
    for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"):
        first = next(each for each in tolerations if each.get("key") in (key, None))
        assert (first["key"], first["tolerationSeconds"]) == (key, 5)


def test_a_rendezvous_process_that_does_not_answer_is_restarted() -> None:
    probe = trainer(rendezvous_manifest(), "rendezvous")["livenessProbe"]
    assert probe["httpGet"] == {"path": "/healthz", "port": "rendezvous"}
    assert probe["periodSeconds"] * probe["failureThreshold"] == 30
    assert probe["terminationGracePeriodSeconds"] == 5, "the pod's own is that of the workers"


def test_a_rendezvous_process_that_starts_slowly_is_not_restarted() -> None:
    """Until the first answer, Kubernetes asks for neither life nor readiness."""
    probe = trainer(rendezvous_manifest(), "rendezvous")["startupProbe"]
    assert probe["httpGet"] == {"path": "/healthz", "port": "rendezvous"}
    assert probe["periodSeconds"] * probe["failureThreshold"] == 180


def test_rendezvous_pod_runs_where_its_image_does() -> None:
    """Images are built for one architecture, or the workers would not run there."""
    nodes = {"kubernetes.io/arch": "arm64", "kubernetes.io/os": "linux"}
    spec = job_with(nodeSelector={**nodes, "gpu": "gb200"})["spec"]
    assert spec["nodeSelector"] == nodes


@pytest.mark.parametrize("field", ["nodeSelector", "volumes", "initContainers", "hostNetwork"])
def test_rendezvous_pod_takes_nothing_else(field: str) -> None:
    given: Any = [{"name": "x"}]
    assert job_with(**{field: given})["spec"] == rendezvous_manifest()["spec"]


def test_service_leads_to_the_rendezvous_pod_of_any_term() -> None:
    service = build_service(make_cluster_job())
    metadata = service["metadata"]
    assert (metadata["name"], metadata["namespace"]) == ("digits-rendezvous", "team")
    assert metadata["ownerReferences"][0]["uid"] == UID
    assert service["spec"] == {
        "selector": LABELS,
        "ports": [{"name": "rendezvous", "port": 29400, "targetPort": 29400}],
    }
    for term in (1, 2):
        pod = rendezvous_manifest(term=term)
        assert pod["metadata"]["labels"].items() >= LABELS.items()
    assert not worker_manifest()["metadata"]["labels"].items() >= LABELS.items()


# --- what the API server knows -----------------------------------------------------------------------

FULL = make_cluster_job(
    gpusPerWorker=2,
    env=[{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}],
    resources={"requests": {"cpu": 0.5}, "limits": {"memory": "1Gi"}},
    snapshot={"storage": {"persistentVolumeClaim": {"claimName": "c"}}, "everySteps": 5},
    network={"interface": "eth0"},
)


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(worker_manifest(), id="worker"),
        pytest.param(worker_manifest(FULL), id="worker_with_everything"),
        pytest.param(
            templated(containers=[SIDE, TRAIN], tolerations=[{"operator": "Exists"}]),
            id="worker_of_a_template",
        ),
        pytest.param(rendezvous_manifest(), id="rendezvous"),
        pytest.param(job_with(imagePullSecrets=[{"name": "pull"}]), id="rendezvous_of_a_template"),
    ],
)
def test_every_field_of_a_pod_is_known(pod: JSON) -> None:
    assert V1Pod.model_validate(pod).model_dump(by_alias=True, exclude_none=True) == pod


def test_every_field_of_the_service_is_known() -> None:
    service = build_service(make_cluster_job())
    assert V1Service.model_validate(service).model_dump(by_alias=True, exclude_none=True) == service


def test_a_field_that_is_not_known_would_be_found() -> None:
    pod = rendezvous_manifest()
    pod["spec"]["containers"][0]["readinessprobe"] = {}
    with pytest.raises(ValidationError, match="readinessprobe"):
        V1Pod.model_validate(pod)


def test_the_place_and_the_resources_of_the_rendezvous_pod_can_be_chosen() -> None:
    template: JSON = {
        "spec": {
            "nodeSelector": {"kubernetes.io/arch": "arm64", "gpu": "h100"},
            "tolerations": [{"key": "gpu", "operator": "Exists"}],
            "containers": [TRAIN],
        }
    }
    own = {
        "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}},
        "nodeSelector": {"pool": "small"},
        "tolerations": [{"key": "small", "operator": "Exists"}],
    }
    spec = rendezvous_manifest(template_job(template, rendezvous=own))["spec"]
    assert spec["nodeSelector"] == {"kubernetes.io/arch": "arm64", "pool": "small"}
    assert [each["key"] for each in spec["tolerations"]][-2:] == ["gpu", "small"]
    [container] = spec["containers"]
    assert container["resources"] == {
        "requests": {"cpu": "100m", "memory": "64Mi"},
        "limits": {"cpu": "1", "memory": "256Mi"},
    }
