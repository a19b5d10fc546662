"""Determines on which nodes a rendezvous pod may run.

The fields are those of the main group's template. Of its nodeSelector, only the architecture and the
operating system count, because the service's image must run there, but the pod needs no GPU.
May not: call the API server.
"""

from __future__ import annotations

from ddpjob_operator.api.spec import DDPJob
from ddpjob_operator.api.spec.pod.strategic_merge import without_nulls
from ddpjob_operator.manifests.pieces import UNREACHABLE, Manifest, as_list, as_mapping

INHERITED = ("tolerations", "imagePullSecrets", "priorityClassName", "schedulerName")
NODE_LABELS = ("kubernetes.io/arch", "kubernetes.io/os")
# The cluster autoscaler may remove its node: the next service learns everything from the agents.
MAY_BE_EVICTED = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"}


def inherited(job: DDPJob) -> Manifest:
    """Return the scheduling and image pull fields of the main group's template."""
    spec = as_mapping(job.spec.groups()[0].template.get("spec"))
    given = {field: spec[field] for field in INHERITED if field in spec}
    nodes = as_mapping(spec.get("nodeSelector"))
    needed = {label: nodes[label] for label in NODE_LABELS if label in nodes}
    selector = {"nodeSelector": needed} if needed else {}
    if "tolerations" in given:
        given["tolerations"] = [
            each
            for each in as_list(given["tolerations"])
            if as_mapping(each).get("key") not in UNREACHABLE  # the limits of workers are not ours
        ]
    return dict(without_nulls({**priority(job), **given, **selector}))


def priority(job: DDPJob) -> Manifest:
    """Return the priority class that the job names."""
    name = job.spec.scheduling.priority_class_name
    return {} if name is None else {"priorityClassName": name}
