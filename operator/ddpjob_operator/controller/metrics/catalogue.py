"""Definitions of all metrics: name, kind, labels and meaning.

docs/metrics.md, the collectors and the tests of dashboards and alerts read them. May not: measure.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

from ddpjob_operator.planner.status.conditions import STATES
from ddpjob_protocol.messages.membership import Cause

CAUSES = tuple(cause.value for cause in Cause)
RESTARTS = ("application", "infrastructure")
JOB_LABELS = ("namespace", "name")
SECONDS_OF_A_CHANGE = (0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 900)
SECONDS_OF_A_PASS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60)
CONTROLLER = "ddpjob"  # value of the labels `controller` and `name` that controller-runtime has


@dataclasses.dataclass(frozen=True)
class Metric:
    """A metric."""

    name: str  # as Prometheus stores it; a counter ends with _total
    kind: Literal["counter", "gauge", "histogram"]
    text: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def series(self) -> tuple[str, ...]:
        """Names of its series."""
        if self.kind != "histogram":
            return (self.name,)
        return tuple(f"{self.name}_{suffix}" for suffix in ("bucket", "count", "sum"))


VALUES = {  # of labels with a fixed set
    "state": STATES,
    "cause": (*CAUSES, *RESTARTS),
    "result": ("success", "error"),
}

REQUESTS = Metric(
    "rest_client_requests_total",
    "counter",
    "Requests to the API server. The code is `none` if there was no answer.",
    ("method", "resource", "code"),
)
PASSES = Metric(
    "controller_runtime_reconcile_total",
    "counter",
    "Passes over a job.",
    ("controller", "result"),
)
PASS_ERRORS = Metric(
    "controller_runtime_reconcile_errors_total",
    "counter",
    "Passes that failed. The job is tried again after a pause.",
    ("controller",),
)
PASS_SECONDS = Metric(
    "controller_runtime_reconcile_time_seconds",
    "histogram",
    "Duration of a pass.",
    ("controller",),
    SECONDS_OF_A_PASS,
)
MAX_WORKERS = Metric(
    "controller_runtime_max_concurrent_reconciles",
    "gauge",
    "Passes that can run at the same time.",
    ("controller",),
)
DEPTH = Metric(
    "workqueue_depth", "gauge", "Jobs in the queue that are due.", ("name", "controller")
)
RETRIES = Metric(
    "workqueue_retries_total",
    "counter",
    "Jobs that were put back after a failed pass.",
    ("name", "controller"),
)
OLDEST = Metric(
    "ddpjob_queue_oldest_seconds",
    "gauge",
    "Longest time that a job has waited in the queue or been worked on.",
)
LEADS = Metric(
    "leader_election_master_status",
    "gauge",
    "1 for the operator that leads, 0 for a standby. Only the leader has series of jobs.",
    ("name",),
)
EVENTS = Metric("ddpjob_events_total", "counter", "Events of jobs.", ("reason",))
WATCHES = Metric(
    "ddpjob_watch_silent_seconds",
    "gauge",
    "Time since the API server sent the last message of a watch. A healthy watch has one at "
    "least every 70 s; above 150 s the operator is restarted.",
    ("resource",),
)
JOBS = Metric("ddpjob_jobs", "gauge", "Jobs by state.", ("state",))

OPERATOR = (
    REQUESTS, PASSES, PASS_ERRORS, PASS_SECONDS, MAX_WORKERS, DEPTH, RETRIES, OLDEST, EVENTS,
    LEADS, WATCHES, JOBS,
)  # fmt: skip


def _of_job(
    name: str, kind: Literal["counter", "gauge", "histogram"], text: str, *labels: str
) -> Metric:
    buckets = SECONDS_OF_A_CHANGE if kind == "histogram" else ()
    return Metric(f"ddpjob_job_{name}", kind, text, (*JOB_LABELS, *labels), buckets)


STATE = _of_job("state", "gauge", "1 for the state of the job, 0 for the others.", "state")
STEP = _of_job("step", "gauge", "Last step that the script reported.")
TOTAL_STEPS = _of_job("total_steps", "gauge", "Steps of the whole training, if reported.")
STEPS_PER_SECOND = _of_job(
    "steps_per_second", "gauge", "Steps per second, mean of the last minute before the last step."
)
WORLD_SIZE = _of_job(
    "world_size", "gauge", "Processes that train together; 0 while no membership runs."
)
WANTED = _of_job("workers_wanted", "gauge", "Workers that the spec asks for, in all groups.")
READY = _of_job("workers_ready", "gauge", "Workers whose pods run.")
GPUS = _of_job("gpus", "gauge", "GPUs of the workers that have a node.")
GPU_SECONDS = _of_job(
    "gpu_seconds_total",
    "counter",
    "Sum of `ddpjob_job_gpus` over time, since this operator process first observed the job.",
)
RESTART_COUNT = _of_job(
    "restarts_total",
    "counter",
    "Restarts because a process failed (`application`) or a worker was lost (`infrastructure`). "
    "A resize is none. A suspension sets them back.",
    "cause",
)
MEMBERSHIPS = _of_job(
    "memberships_total", "counter", "Memberships that were formed, by cause.", "cause"
)
DETECTION = _of_job(
    "detection_seconds",
    "histogram",
    "From the last step before a change to the new membership: the change is detected, and enough "
    "workers are there.",
    "cause",
)
FIRST_STEP = _of_job(
    "first_step_seconds",
    "histogram",
    "From a new membership to its first step: the processes start or regroup, and resume.",
    "cause",
)
STALL = _of_job(
    "stall_seconds",
    "histogram",
    "Time without a step because of a change: detection and first step together, as in "
    "`status.history`.",
    "cause",
)
REPEATED = _of_job(
    "repeated_steps_total", "counter", "Steps that ran again because the snapshot was older."
)
SNAPSHOT_STEP = _of_job("snapshot_step", "gauge", "Step of the newest snapshot.")
SNAPSHOT_AGE = _of_job(
    "snapshot_age_seconds",
    "gauge",
    "Time since this operator process learned of the newest snapshot; with `snapshot.files`, time "
    "since the last replica.",
)
GOODPUT = _of_job(
    "goodput_ratio",
    "gauge",
    "Share of the time since the first known membership in which steps were done for the first "
    "time. Stalls of changes and repeated steps lower it. A pause between two steps of one "
    "membership lowers it only until the next step.",
)
WARNINGS = _of_job("warnings", "gauge", "Warnings in the status that are ongoing.")

JOB = (
    STATE, STEP, TOTAL_STEPS, STEPS_PER_SECOND, WORLD_SIZE, WANTED, READY, GPUS, GPU_SECONDS,
    RESTART_COUNT, MEMBERSHIPS, DETECTION, FIRST_STEP, STALL, REPEATED, SNAPSHOT_STEP,
    SNAPSHOT_AGE, GOODPUT, WARNINGS,
)  # fmt: skip
ALL = (*OPERATOR, *JOB)
