"""Public names: labels, condition types, reasons, and the names of a job's children.

May not: decide anything. A child's name is a function of the observation. If a pass creates a
child twice, the second creation therefore collides with the existing name.
"""

from __future__ import annotations

import re
from enum import StrEnum

GROUP = "ddpjob.io"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "DDPJob"
PLURAL = "ddpjobs"
SHORT_NAME = "ddp"

LABEL_JOB = f"{GROUP}/job"
LABEL_GROUP = f"{GROUP}/group"
LABEL_INDEX = f"{GROUP}/index"
LABEL_INCARNATION = f"{GROUP}/incarnation"
LABEL_ROLE = f"{GROUP}/role"  # worker | rendezvous
LABEL_TERM = f"{GROUP}/term"
LABEL_KEY = f"{GROUP}/key"  # fingerprint of the job's key
KEYS_VOLUME = "ddpjob-keys"  # of a pod, with its Secret
LABEL_REVISION = f"{GROUP}/revision"  # of the fields that make pods
LABEL_ISOLATED = f"{GROUP}/isolated"  # the pod is subject to its job's NetworkPolicy

ROLE_WORKER = "worker"
ROLE_RENDEZVOUS = "rendezvous"
ROLE_POLICY = "network-policy"

SERVICE_PORT = 29400  # port of every rendezvous service
MAIN_GROUP = "worker"
MAX_DEPTH = 100  # levels of a file, and of a field of any form
MAX_NAMES = 50  # job and group name together: a pod's name becomes a host name of 63 characters


class ConditionType(StrEnum):
    """The type of a condition."""

    RUNNING = "Running"
    RESIZING = "Resizing"
    SUSPENDED = "Suspended"
    STALLED = "Stalled"
    COMPLETE = "Complete"
    FAILED = "Failed"


class Reason(StrEnum):
    """The reason for the status of a condition."""

    TRAINING = "Training"
    WAITING = "Waiting"
    NO_REPORT = "NoReport"
    SERVICE_UNREACHABLE = "ServiceUnreachable"
    RENDEZVOUS_NOT_PLACED = "RendezvousNotPlaced"
    RENDEZVOUS_FAILS = "RendezvousFails"
    RENDEZVOUS_NOT_READY = "RendezvousNotReady"
    DRAINING = "Draining"
    JOINING = "Joining"
    AT_SIZE = "AtSize"
    PARTLY_PLACED = "PartlyPlaced"
    SUSPENDED = "Suspended"
    TOO_FEW_PLACED = "TooFewPlaced"
    WORKER_SILENT = "WorkerSilent"
    NOT_CONNECTED = "NotConnected"
    WORKER_NOT_STARTED = "WorkerNotStarted"
    GATED = "Gated"
    WORKERS_FAIL = "WorkersFail"
    IMAGE_NOT_PULLED = "ImageCannotBePulled"
    PYTHON_MISSING = "PythonMissing"
    CONTAINER_CANNOT_START = "ContainerCannotStart"
    OUT_OF_MEMORY = "OutOfMemory"
    DISK_LIMIT = "DiskLimitExceeded"
    QUOTA_EXCEEDED = "QuotaExceeded"
    POD_REFUSED = "PodRefused"
    NAME_TAKEN = "NameTaken"
    API_SERVER_FAILS = "ApiServerFails"
    VOLUME_MISSING = "VolumeMissing"
    VOLUME_NOT_SHARED = "VolumeNotShared"
    INVALID_SPEC = "InvalidSpec"
    NO_PROGRESS = "NoProgress"
    COMPLETED = "Completed"
    APPLICATION_FAILED = "ApplicationFailed"
    COMMAND_FAILED = "CommandCannotStart"
    TOO_MANY_LOSSES = "TooManyLosses"
    DEADLINE_EXCEEDED = "DeadlineExceeded"


class EventReason(StrEnum):
    """The reason of a transition's event; the event of a warning has the warning's reason."""

    STARTED = "Started"
    WORKER_LOST = "WorkerLost"
    RESTARTED = "Restarted"
    WORKER_LEFT = "WorkerLeft"
    WORKER_JOINED = "WorkerJoined"
    WORKER_REPLACED = "WorkerReplaced"
    RENDEZVOUS_REPLACED = "RendezvousReplaced"
    STEPS_REPEATED = "StepsRepeated"
    PROGRESS_RESUMED = "ProgressResumed"
    COMPLETED = "Completed"
    FAILED = "Failed"
    SUSPENDED = "Suspended"
    RESUMED = "Resumed"
    POD_NOT_KEPT = "PodNotKept"


def worker_group(job: str, group: str) -> str:
    """Return the common prefix of a group's worker names, without the final hyphen."""
    return f"{job}-{group}"


def worker_name(job: str, group: str, index: int, incarnation: int) -> str:
    """Return a worker's name, such as `digits-worker-000-1`; names sort by group and index."""
    return f"{worker_group(job, group)}-{index:03d}-{incarnation}"


def parse_worker_name(job: str, name: str) -> tuple[str, int, int] | None:
    """Return group, index and incarnation, or None if the name is not of this job's workers."""
    match = re.fullmatch(rf"{re.escape(job)}-(.+)-(\d{{3,}})-(\d+)", name)
    return (match[1], int(match[2]), int(match[3])) if match else None


def rendezvous_name(job: str, term: int) -> str:
    """Return the name of a rendezvous pod, such as `digits-rendezvous-1`."""
    return f"{job}-rendezvous-{term}"


def service_name(job: str) -> str:
    """Return the name of the Service for the current rendezvous pod."""
    return f"{job}-rendezvous"


def policy_name(job: str) -> str:
    """Return the name of the job's NetworkPolicy."""
    return f"{job}-pods"


def selector(job: str) -> str:
    """Return the label selector of the main group's workers."""
    return f"{LABEL_JOB}={job},{LABEL_GROUP}={MAIN_GROUP}"
