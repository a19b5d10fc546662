"""Labels and annotations of the objects of a job.

A pod has the standard labels of Kubernetes and the defaults of the operator, then the job's own labels
and annotations, then those of the template; each overrides the ones before it. The labels of the operator override all of them.
May not: validate a label; the API server validates every object.
"""

from __future__ import annotations

from collections.abc import Mapping

from ddpjob_operator.api import constants
from ddpjob_operator.api.spec import DDPJob
from ddpjob_operator.api.spec.pod.strategic_merge import merge
from ddpjob_operator.manifests.network import NO_MESH_ANNOTATIONS, NO_MESH_LABELS
from ddpjob_operator.manifests.pieces import Manifest, as_mapping

APP = "ddpjob"
MANAGER = "ddpjob-operator"
DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"
# Annotations of a job that describe the job itself, not its pods.
OF_THE_JOB = ("kubectl.kubernetes.io/last-applied-configuration", DEFAULT_CONTAINER)


def object_metadata(job: DDPJob, name: str, labels: Mapping[str, str]) -> Manifest:
    """Return the metadata of an object that the job owns; `labels` are those of the operator."""
    owner = {
        "apiVersion": constants.API_VERSION,
        "kind": constants.KIND,
        "name": job.metadata.name,
        "uid": job.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {
        "name": name,
        "namespace": job.metadata.namespace,
        "labels": {**_standard_labels(job, labels[constants.LABEL_ROLE]), **labels},
        "ownerReferences": [owner],
    }


def pod_metadata(
    job: DDPJob,
    name: str,
    labels: Mapping[str, str],
    container: object,
    template: object = None,
    own: Mapping[str, str] | None = None,
) -> Manifest:
    """Return the metadata of a pod; `template` is that of its template, `own` default annotations."""
    metadata = object_metadata(job, name, labels)
    shown = {DEFAULT_CONTAINER: container} if isinstance(container, str) else {}
    annotations = _not_reserved(job.metadata.annotations)
    defaults = {
        "labels": {**metadata["labels"], **NO_MESH_LABELS, **_not_reserved(job.metadata.labels)},
        "annotations": {**NO_MESH_ANNOTATIONS, **(own or {}), **annotations, **shown},
    }
    given = {field: each for field, each in as_mapping(template).items() if field in defaults}
    merged = merge(defaults, given)
    metadata["labels"] = {**as_mapping(merged["labels"]), **labels}
    if merged["annotations"]:
        metadata["annotations"] = merged["annotations"]
    return metadata


def _standard_labels(job: DDPJob, component: str) -> dict[str, str]:
    prefix = "app.kubernetes.io"
    return {
        f"{prefix}/name": APP,
        f"{prefix}/instance": job.metadata.name,
        f"{prefix}/component": component,
        f"{prefix}/part-of": APP,
        f"{prefix}/managed-by": MANAGER,
    }


def _not_reserved(values: Mapping[str, str]) -> dict[str, str]:
    return {
        key: value
        for key, value in values.items()
        if key not in OF_THE_JOB and not key.startswith(f"{constants.GROUP}/")
    }
