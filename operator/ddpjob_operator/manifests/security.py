"""Security contexts of the pods and containers of a job.

The user of an image may be any one, and a new volume usually belongs to root. If snapshots are
stored on a claim, the pod therefore gets a group that may write to its volumes (`fsGroup`). The
kubelet changes the group of the files once, if the folder at the top has another group. A template
with an fsGroup, or with `fsGroup: null`, decides for itself.

Many images run as root. A worker pod therefore does not require another user (`runAsNonRoot`), unless
the namespace enforces the Pod Security standard *restricted*, which refuses the pod without it.
"""

from __future__ import annotations

from typing import Any

from ddpjob_operator.api.spec import DDPJob
from ddpjob_operator.manifests.pieces import Manifest, as_mapping

CONFINED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
# Security context of the containers from the agent's image.
OURS = {**CONFINED, "readOnlyRootFilesystem": True, "runAsNonRoot": True}
SECCOMP = {"seccompProfile": {"type": "RuntimeDefault"}}
FS_GROUP = 65532  # the group of ddpjob's images; any group serves, because processes get it, too
CLAIMS = ("persistentVolumeClaim", "ephemeral")  # volumes that may belong to root


def worker_security_context(job: DDPJob, spec: Manifest) -> Any:
    """Return the security context of a worker pod whose template has this spec."""
    given = spec.get("securityContext", SECCOMP)
    storage = job.spec.snapshot.storage or {}
    if not isinstance(given, dict) or "fsGroup" in given or not set(CLAIMS) & set(storage):
        return given
    windows = as_mapping(spec.get("os")).get("name") == "windows"
    if windows or runs_as_root(spec):
        return given
    return {"fsGroupChangePolicy": "OnRootMismatch", **given, "fsGroup": FS_GROUP}


def as_restricted(pod: Manifest, refusal: str) -> Manifest | None:
    """Return the pod with `runAsNonRoot` if this refusal asks for it and the pod leaves it open."""
    spec = pod.get("spec", {})
    context = spec.get("securityContext")
    asked = "violates PodSecurity" in refusal and "runAsNonRoot" in refusal
    if not asked or not isinstance(context, dict) or runs_as_root(spec):
        return None
    if "runAsNonRoot" in context:
        return None
    return {**pod, "spec": {**spec, "securityContext": {**context, "runAsNonRoot": True}}}


def runs_as_root(spec: Manifest) -> bool:
    """Return whether the pod's template makes root the user of its containers."""
    return as_mapping(spec.get("securityContext")).get("runAsUser") == 0
