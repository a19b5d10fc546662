"""Determines on which nodes pods may run: all pods avoid the same nodes.

The fields of a rendezvous pod are those of spec.rendezvous and of the main group's template. Of the
template's nodeSelector, only the architecture and the operating system count: the service's image
must run there, but the pod needs no GPU.
May not: call the API server.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ddpjob_operator.api.spec import DDPJob
from ddpjob_operator.api.spec.pod.strategic_merge import without_nulls
from ddpjob_operator.manifests.pieces import UNREACHABLE, Manifest, as_list, as_mapping

INHERITED = ("tolerations", "imagePullSecrets", "priorityClassName", "schedulerName")
HOST_NAME = "kubernetes.io/hostname"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
NODE_LABELS = ("kubernetes.io/arch", "kubernetes.io/os")
# The cluster autoscaler may remove its node: the next service learns everything from the agents.
MAY_BE_EVICTED = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"}


def inherited(job: DDPJob) -> Manifest:
    """Return the scheduling and image pull fields of the rendezvous pod."""
    spec = as_mapping(job.spec.groups()[0].template.get("spec"))
    given = {field: spec[field] for field in INHERITED if field in spec}
    nodes = as_mapping(spec.get("nodeSelector"))
    own = job.spec.rendezvous
    needed = {label: nodes[label] for label in NODE_LABELS if label in nodes} | own.node_selector
    selector = {"nodeSelector": needed} if needed else {}
    if "tolerations" in given:
        given["tolerations"] = [
            each
            for each in as_list(given["tolerations"])
            if as_mapping(each).get("key") not in UNREACHABLE  # the limits of workers are not ours
        ]
    if own.tolerations:
        given["tolerations"] = [*as_list(given.get("tolerations")), *own.tolerations]
    return dict(without_nulls({**priority(job), **given, **selector}))


def keep_off(affinity: object, nodes: tuple[str, ...]) -> Manifest:
    """Return the affinity of a pod that avoids these nodes, too; as a field of its spec.

    The terms of a required node affinity are alternatives, so each of them gets the requirement.
    """
    if not nodes:
        return {} if affinity is None else {"affinity": affinity}
    rule = {"key": HOST_NAME, "operator": "NotIn", "values": list(nodes)}
    given = as_mapping(affinity)
    on_nodes = as_mapping(given.get("nodeAffinity"))
    required = as_mapping(on_nodes.get(REQUIRED))
    terms = [
        {**term, "matchExpressions": [*as_list(term.get("matchExpressions")), rule]}
        for term in as_list(required.get("nodeSelectorTerms"))
        if isinstance(term, dict) and term  # an empty one matches no node
    ]
    if "nodeSelectorTerms" not in required:
        terms = [{"matchExpressions": [rule]}]
    required = {**required, "nodeSelectorTerms": terms}
    return {"affinity": {**given, "nodeAffinity": {**on_nodes, REQUIRED: required}}}


def kept_off(spec: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the nodes that each term of a pod's required node affinity excludes by name."""
    on_nodes = as_mapping(as_mapping(spec.get("affinity")).get("nodeAffinity"))
    terms = as_list(as_mapping(on_nodes.get(REQUIRED)).get("nodeSelectorTerms"))
    excluded = [
        {
            node
            for rule in as_list(as_mapping(term).get("matchExpressions"))
            if rule.get("key") == HOST_NAME and rule.get("operator") == "NotIn"
            for node in rule["values"]
        }
        for term in terms
    ]
    return tuple(sorted(set.intersection(*excluded))) if excluded else ()


def priority(job: DDPJob) -> Manifest:
    """Return the priority class that the job names."""
    name = job.spec.scheduling.priority_class_name
    return {} if name is None else {"priorityClassName": name}
