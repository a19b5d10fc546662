"""Labels and annotations of pods: from the job, from the template, and the standard ones."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from support.rawpods import JSON, make_cluster_job, rendezvous_manifest, worker_manifest

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"
NO_MESH = {"linkerd.io/inject": "disabled"}
EVICTABLE = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"}


def metadata_of(
    labels: dict[str, str], annotations: dict[str, str], rendezvous: bool = False, **spec: Any
) -> JSON:
    """The metadata of a pod of a job with this metadata."""
    job = make_cluster_job(**spec)
    update = {"labels": labels, "annotations": annotations}
    metadata = job.metadata.model_copy(update=update)
    job = job.model_copy(update={"metadata": metadata})
    pod = rendezvous_manifest(job) if rendezvous else worker_manifest(job)
    found: JSON = pod["metadata"]
    return found


def test_labels_and_annotations_of_the_job_reach_all_its_pods() -> None:
    for rendezvous in (False, True):
        found = metadata_of({"team": "vision"}, {"cost": "7"}, rendezvous)
        assert found["labels"]["team"] == "vision"
        assert found["annotations"]["cost"] == "7"


def test_what_concerns_the_job_alone_stays_there() -> None:
    reserved = {"ddpjob.io/role": "x", "ddpjob.io/own": "y"}
    found = metadata_of(reserved, {LAST_APPLIED: "{}", "ddpjob.io/a": "b", DEFAULT_CONTAINER: "x"})
    assert found["labels"]["ddpjob.io/role"] == "worker"
    assert "ddpjob.io/own" not in found["labels"]
    assert found["annotations"] == {**NO_MESH, DEFAULT_CONTAINER: "trainer"}


def test_the_template_overrides_the_job_and_the_job_overrides_the_standard() -> None:
    own = {"labels": {"team": "audio", "tier": None}, "annotations": {DEFAULT_CONTAINER: "logs"}}
    found = metadata_of(
        {"team": "vision", "tier": "1", "app.kubernetes.io/part-of": "platform"},
        {"a": "1"},
        template={"metadata": own},
    )
    labels = found["labels"]
    assert (labels["team"], labels["app.kubernetes.io/part-of"]) == ("audio", "platform")
    assert "tier" not in labels
    assert found["annotations"] == {**NO_MESH, DEFAULT_CONTAINER: "logs", "a": "1"}


def test_metadata_of_the_template_is_not_for_the_rendezvous_pod() -> None:
    """A Service that selects the workers must not select it."""
    template = {"metadata": {"labels": {"app": "trainer"}}}
    assert "app" not in metadata_of({}, {}, rendezvous=True, template=template)["labels"]


def test_the_default_container_is_the_one_that_trains() -> None:
    first = {"name": "main", "image": "i", "command": ["x"]}
    template = {"spec": {"containers": [first]}}
    found = metadata_of({}, {}, command=None, image=None, template=template)
    assert found["annotations"] == {**NO_MESH, DEFAULT_CONTAINER: "main"}
    found = metadata_of({}, {}, rendezvous=True)
    assert found["annotations"] == {**NO_MESH, **EVICTABLE, DEFAULT_CONTAINER: "rendezvous"}


def test_a_mesh_adds_nothing_to_the_pods_unless_it_is_asked_for() -> None:
    """Its sidecar would keep a pod that has trained, and redirect the workers' connections."""
    mesh = {"labels": {"sidecar.istio.io/inject": "true"}}
    asked = {"metadata": {**mesh, "annotations": {"linkerd.io/inject": "enabled"}}}
    for rendezvous in (False, True):
        found = metadata_of({}, {}, rendezvous)
        assert found["labels"]["sidecar.istio.io/inject"] == "false"
        assert found["annotations"]["linkerd.io/inject"] == "disabled"
        of_the_job = metadata_of(mesh["labels"], {}, rendezvous)
        assert of_the_job["labels"]["sidecar.istio.io/inject"] == "true"
    found = metadata_of({}, {}, template=asked)
    assert found["labels"]["sidecar.istio.io/inject"] == "true"
    assert found["annotations"]["linkerd.io/inject"] == "enabled"


def test_the_autoscaler_may_remove_the_node_of_a_rendezvous_pod_only() -> None:
    found = metadata_of({}, {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}, True)
    assert found["annotations"]["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "false"
    assert not EVICTABLE.keys() & metadata_of({}, {})["annotations"].keys()


def test_the_disruption_budget_of_the_docs_protects_the_workers_of_all_groups() -> None:
    """By a number: Kubernetes computes all else from the scale, that is from the main group."""
    page = Path(__file__).parents[3] / "docs" / "failures.md"
    [block] = re.findall("```yaml\n(.*PodDisruptionBudget.*?)```", page.read_text(), re.DOTALL)
    spec = yaml.safe_load(block.rpartition("```yaml\n")[2])["spec"]
    assert type(spec["minAvailable"]) is int
    wanted = spec["selector"]["matchLabels"].items()
    group = make_cluster_job(extraWorkerGroups=[{"name": "spot", "replicas": 1}])
    for pod in (worker_manifest(), worker_manifest(group, group="spot")):
        assert wanted <= {**pod["metadata"]["labels"], "ddpjob.io/job": "digits"}.items()
    assert not wanted <= rendezvous_manifest()["metadata"]["labels"].items()
