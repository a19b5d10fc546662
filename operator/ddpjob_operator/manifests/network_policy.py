"""Builds the NetworkPolicy of a job, which admits few pods to the pods of the job.

The ports of gloo, NCCL and torch's store have no authentication, so only the pods of the job may
connect to its workers, and to its service also the operator. Kubelets always may. Policies add up:
to admit others, such as a scraper of metrics, a user adds a policy.

Packets of a pod in its node's network come from the address of the node, which no selector of pods
matches. A job with such workers could not train below a policy. The policy therefore selects the pods
by a label that the pods of such a job lack (ADR 0049).
May not: call the API server.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from ddpjob_operator.api import constants
from ddpjob_operator.api.spec import DDPJob
from ddpjob_operator.manifests.metadata import object_metadata
from ddpjob_operator.manifests.pieces import Manifest, as_mapping

NAMESPACE_NAME = "kubernetes.io/metadata.name"  # label that every namespace has


@dataclasses.dataclass(frozen=True)
class OperatorPods:
    """The namespace and the labels by which a policy admits the operator's pods."""

    namespace: str
    labels: Mapping[str, str]

    @classmethod
    def parse(cls, text: str) -> OperatorPods:
        """Parse NAMESPACE/LABEL=VALUE,...; raise ValueError with the part that is wrong."""
        namespace, _, rest = text.partition("/")
        pairs = [pair.partition("=") for pair in rest.split(",")]
        if not namespace or not all(name and equals for name, equals, _ in pairs):
            raise ValueError(f"'{text}' is not NAMESPACE/LABEL=VALUE,LABEL=VALUE,...")
        return cls(namespace, {name: value for name, _, value in pairs})


def isolation_labels(job: DDPJob) -> dict[str, str]:
    """Return the label by which the job's policy selects a pod; none for pods of nodes' networks."""
    specs = [as_mapping(group.template.get("spec")) for group in job.spec.groups()]
    if any(spec.get("hostNetwork") for spec in specs):
        return {}
    return {constants.LABEL_ISOLATED: "true"}


def build_network_policy(job: DDPJob, operator: OperatorPods) -> Manifest:
    """Return the policy that admits the pods of the job, and the operator to the service's port."""
    name = job.metadata.name
    labels = {constants.LABEL_JOB: name, constants.LABEL_ROLE: constants.ROLE_POLICY}
    own = {"podSelector": {"matchLabels": {constants.LABEL_JOB: name}}}
    its_operator = {
        "namespaceSelector": {"matchLabels": {NAMESPACE_NAME: operator.namespace}},
        "podSelector": {"matchLabels": dict(operator.labels)},
    }
    isolated = {constants.LABEL_JOB: name, constants.LABEL_ISOLATED: "true"}
    service_port = {"protocol": "TCP", "port": constants.SERVICE_PORT}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": object_metadata(job, constants.policy_name(name), labels),
        "spec": {
            "podSelector": {"matchLabels": isolated},
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [own]}, {"from": [its_operator], "ports": [service_port]}],
        },
    }
