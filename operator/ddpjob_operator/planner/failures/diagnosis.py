"""Maps the reason and message of a pod's status to a condition reason and a remedy.

The kubelet and the scheduler report the symptom. A job's condition names the cause and the next
step. May not: use any input but the reason and message of a pod.
"""

from __future__ import annotations

import dataclasses
import re

from ddpjob_operator.api.constants import Reason


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """The reason for a condition, and the next step for the user."""

    reason: Reason
    remedy: str


@dataclasses.dataclass(frozen=True)
class _Row:
    reason: str  # regular expression for the kubelet's whole reason
    message: str  # regular expression for a part of the kubelet's message
    diagnosis: Diagnosis


# The kubelet's words for a pod that used more of the node's disk than it may.
LOCAL_DISK = "(?i)Usage of EmptyDir volume|ephemeral.{0,10}storage usage|ephemeral local storage"

_TABLE = (
    _Row(
        "StartError|RunContainerError|CreateContainerError|ContainerCannotRun",
        r"""(?i)["'`]python3\\?["'`].*(not found|no such file)""",  # runc, crun and gVisor
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
        "runAsNonRoot|non-root",
        Diagnosis(
            Reason.CONTAINER_CANNOT_START,
            "the pod must not run as root: use an image with a numeric USER other than 0, or set "
            "runAsUser in template.spec.securityContext",
        ),
    ),
    _Row(
        "CreateContainerConfigError",
        "",
        Diagnosis(
            Reason.CONTAINER_CANNOT_START,
            "create the ConfigMap or Secret that the pod names, or correct its securityContext",
        ),
    ),
    _Row(
        "StartError|RunContainerError|CreateContainerError|ContainerCannotRun",
        "",
        Diagnosis(
            Reason.CONTAINER_CANNOT_START,
            "the node's container runtime refuses it; correct image, command or volumes",
        ),
    ),
    _Row(
        "OOMKilled",
        "",
        Diagnosis(Reason.OUT_OF_MEMORY, "raise the memory limit or make the job need less"),
    ),
    _Row(
        "Evicted",
        LOCAL_DISK,
        Diagnosis(
            Reason.DISK_LIMIT,
            "raise sizeLimit of the emptyDir or the limit of ephemeral-storage, keep fewer snapshots,"
            " or save to a claim: with the pod its snapshots are gone",
        ),
    ),
    _Row(
        "Unschedulable",
        r"persistentvolumeclaim \"[^\"]*\" not found",
        Diagnosis(Reason.VOLUME_MISSING, "create the claim, or name one that exists"),
    ),
)


_STAMP = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (ddpjob\S* )?")  # of our log lines


def quote(message: str) -> str:
    """Return the last line of a pod's message, which may be the end of a log, without its stamp."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return _STAMP.sub("", lines[-1], count=1).rstrip(".") if lines else ""


def diagnose(reason: str, message: str) -> Diagnosis | None:
    """Return the diagnosis for a reason and message of the kubelet or scheduler, or None."""
    if not reason:
        return None
    for row in _TABLE:
        if re.fullmatch(row.reason, reason) and re.search(row.message, message):
            return row.diagnosis
    return None


def remedy_text(diagnosis: Diagnosis | None) -> str:
    """Return the remedy after a semicolon; an empty text without a diagnosis."""
    return f"; {diagnosis.remedy}" if diagnosis else ""
