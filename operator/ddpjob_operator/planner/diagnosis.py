"""What keeps a pod from running or made it end, in words that say what to do next.

Kubelet and scheduler say what happened; who reads a job's conditions wants to know what is wrong
with the job. May not: know anything but a pod's own words.
"""

from __future__ import annotations

import dataclasses
import re

from ddpjob_operator.api.constants import Reason


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """A reason for a condition, and the next step."""

    reason: Reason
    remedy: str


@dataclasses.dataclass(frozen=True)
class _Row:
    reason: str  # the kubelet's word; a regular expression
    message: str  # its explanation; a regular expression to be found in it
    diagnosis: Diagnosis


_TABLE = (
    _Row(
        "StartError|RunContainerError|CreateContainerError|ContainerCannotRun",
        r"""(?i)["'`]python3\\?["'`].*(not found|no such file)""",  # runc, crun, gVisor alike
        Diagnosis(
            Reason.PYTHON_MISSING,
            "the image needs python3, 3.9 or newer, on its PATH; add it or use another image",
        ),
    ),
    _Row(
        "ErrImagePull|ImagePullBackOff|ErrImageNeverPull|InvalidImageName|ImageInspectError"
        "|RegistryUnavailable|SignatureValidationFailed",
        "",
        Diagnosis(
            Reason.IMAGE_NOT_PULLED,
            "correct the image's name and tag, or give the pod the pull secret that it needs",
        ),
    ),
    _Row(
        "CreateContainerConfigError",
        "",
        Diagnosis(
            Reason.CONTAINER_REFUSED,
            "create the ConfigMap or Secret that the pod names, or correct its securityContext",
        ),
    ),
    _Row(
        "StartError|RunContainerError|CreateContainerError|ContainerCannotRun",
        "",
        Diagnosis(
            Reason.CONTAINER_REFUSED,
            "the node's container runtime refuses it; correct image, command or volumes",
        ),
    ),
    _Row(
        "OOMKilled",
        "",
        Diagnosis(Reason.OUT_OF_MEMORY, "raise the memory limit or make the job need less"),
    ),
    _Row(
        "Unschedulable",
        r"persistentvolumeclaim \"[^\"]*\" not found",
        Diagnosis(Reason.VOLUME_MISSING, "create the claim, or name one that exists"),
    ),
)


def diagnose(reason: str, message: str) -> Diagnosis | None:
    """What is known about these words of kubelet or scheduler."""
    for row in _TABLE:
        if re.fullmatch(row.reason, reason) and re.search(row.message, message):
            return row.diagnosis
    return None
