"""Names that others see or select by: labels, condition types, reasons, children.

May not: decide anything. A child's name is a function of what was observed, so that creating it
twice is noticed by whoever holds the names.
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

ROLE_WORKER = "worker"
ROLE_RENDEZVOUS = "rendezvous"

SERVICE_PORT = 29400  # of every job's rendezvous service
MAIN_GROUP = "worker"
MAX_NAMES = 50  # job and group name together: a pod's name becomes a host name of 63 characters


class ConditionType(StrEnum):
    """What conditions are about."""

    RUNNING = "Running"
    RESIZING = "Resizing"
    SUSPENDED = "Suspended"
    STALLED = "Stalled"
    COMPLETE = "Complete"
    FAILED = "Failed"


class Reason(StrEnum):
    """Why a condition is as it is."""

    TRAINING = "Training"
    WAITING = "Waiting"
    NO_REPORT = "NoReport"
    RENDEZVOUS_NOT_READY = "RendezvousNotReady"
    DRAINING = "Draining"
    JOINING = "Joining"
    NOT_RUNNING = "NotRunning"
    AT_SIZE = "AtSize"
    PARTLY_PLACED = "PartlyPlaced"
    SUSPENDED = "Suspended"
    NOT_SUSPENDED = "NotSuspended"
    TOO_FEW_PLACED = "TooFewPlaced"
    WORKERS_FAIL = "WorkersFail"
    IMAGE_NOT_PULLED = "ImageCannotBePulled"
    PYTHON_MISSING = "PythonMissing"
    CONTAINER_REFUSED = "ContainerCannotStart"
    OUT_OF_MEMORY = "OutOfMemory"
    QUOTA_EXCEEDED = "QuotaExceeded"
    POD_REFUSED = "PodRefused"
    VOLUME_MISSING = "VolumeMissing"
    VOLUME_NOT_SHARED = "VolumeNotShared"
    INVALID_SPEC = "InvalidSpec"
    NO_PROGRESS = "NoProgress"
    NOT_STALLED = "NotStalled"
    COMPLETED = "Completed"
    APPLICATION_FAILED = "ApplicationFailed"
    COMMAND_FAILED = "CommandCannotStart"
    TOO_MANY_LOSSES = "TooManyLosses"
    DEADLINE_EXCEEDED = "DeadlineExceeded"


class EventReason(StrEnum):
    """Transitions that are told once."""

    STARTED = "Started"
    WORKER_LOST = "WorkerLost"
    RESTARTED = "Restarted"
    WORKER_LEFT = "WorkerLeft"
    WORKER_JOINED = "WorkerJoined"
    WORKER_REPLACED = "WorkerReplaced"
    STEPS_REPEATED = "StepsRepeated"
    GRACE_PERIOD_TOO_SHORT = "GracePeriodTooShort"
    PROCESS_STUCK = "ProcessStuck"
    UNREACHABLE = "Unreachable"
    SNAPSHOT_NOT_SHARED = "SnapshotNotShared"
    SNAPSHOT_DEGRADED = "SnapshotDegraded"
    FILES_NOT_KEPT = "FilesNotKept"
    COMPLETED = "Completed"
    FAILED = "Failed"
    SUSPENDED = "Suspended"
    RESUMED = "Resumed"


def worker_group(job: str, group: str) -> str:
    """What the names of a group's workers begin with: all but index and incarnation."""
    return f"{job}-{group}"


def worker_name(job: str, group: str, index: int, incarnation: int) -> str:
    """Such as `digits-worker-000-1`; sorts by group and index."""
    return f"{worker_group(job, group)}-{index:03d}-{incarnation}"


def parse_worker_name(job: str, name: str) -> tuple[str, int, int] | None:
    """Group, index and incarnation; None when it is no name of this job's workers."""
    match = re.fullmatch(rf"{re.escape(job)}-(.+)-(\d{{3,}})-(\d+)", name)
    return (match[1], int(match[2]), int(match[3])) if match else None


def rendezvous_name(job: str, term: int) -> str:
    """Such as `digits-rendezvous-1`."""
    return f"{job}-rendezvous-{term}"


def service_name(job: str) -> str:
    """The Service that leads to the rendezvous pod, whichever it is now."""
    return f"{job}-rendezvous"


def selector(job: str, group: str = MAIN_GROUP) -> str:
    """Label selector of one group's workers."""
    return f"{LABEL_JOB}={job},{LABEL_GROUP}={group}"
