"""DNS of the cluster for pods in their node's network, and no sidecar of a mesh for any pod.

A sidecar of a mesh would begin after the agent, redirect the workers' own connections, and keep a
pod running whose training has ended. The pods therefore ask for none, unless the job or its
template asks for one.
May not: call the API server.
"""

from __future__ import annotations

from ddpjob_operator.manifests.pieces import Manifest

NO_MESH_LABELS = {"sidecar.istio.io/inject": "false"}
NO_MESH_ANNOTATIONS = {"linkerd.io/inject": "disabled"}


def dns_policy(spec: Manifest) -> Manifest:
    """Return the DNS policy with which a pod in its node's network finds the job's Service."""
    if spec.get("hostNetwork") is True and spec.get("dnsPolicy") is None:
        return {"dnsPolicy": "ClusterFirstWithHostNet"}
    return {}
