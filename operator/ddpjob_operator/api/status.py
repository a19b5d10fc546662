"""The status of a DDPJob: only facts that the operator observed.

May not: decide anything.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from ddpjob_operator.api.base import ObservedModel


class Condition(ObservedModel):
    """An observation about a job, with its time and its reason."""

    type: str = Field(description="Type of the condition.")
    status: Literal["True", "False", "Unknown"] = Field(
        description="Status of the condition: True, False or Unknown."
    )
    reason: str = Field(description="Reason for the status, in one CamelCase word.")
    message: str = Field(default="", description="Explanation of the status for people.")
    observed_generation: int = Field(
        default=0, description="Generation of the spec that was observed."
    )
    last_transition_time: datetime | None = Field(
        default=None, description="Time of the last change of the status."
    )


class MembershipStatus(ObservedModel):
    """The workers that train together."""

    id: str = Field(description="Identity: term.boot.n. A higher one fences a lower one.")
    workers: tuple[str, ...] = Field(
        description="Names of the workers, in the order of ranks once firstRanks is given."
    )
    first_ranks: tuple[int, ...] = Field(
        default=(), description="First rank of each worker. Empty until the ranks are known."
    )
    world_size: int = Field(description="Number of processes.")
    since: datetime = Field(description="Time when the membership was formed.")
    cause: str = Field(description="Cause: started, lost, failed, left or joined.")


class RestartsStatus(ObservedModel):
    """Restarts so far; a change of size is not a restart."""

    application: int = Field(default=0, description="Restarts because a process failed.")
    infrastructure: int = Field(default=0, description="Restarts because a worker was lost.")
    total: int = Field(default=0, description="Sum of all restarts.")
    recent: tuple[datetime, ...] = Field(
        default=(),
        description="Times of the failures that failurePolicy.windowSeconds counts, oldest first.",
    )
    repeated_steps: int = Field(
        default=0, description="Steps that ran again because the snapshot was older."
    )


class ProgressStatus(ObservedModel):
    """Progress of the training."""

    step: int | None = Field(default=None, description="Last step that was reported.")
    total_steps: int | None = Field(
        default=None, description="Number of steps of the whole training."
    )
    display: str = Field(default="", description="Steps done, of all steps if known, as 40/900.")
    steps_per_second: float | None = Field(
        default=None, description="Average of the last minute, with two significant digits."
    )
    estimated_completion: datetime | None = Field(
        default=None,
        description="Expected time of the last step, if the script reports the number of steps.",
    )
    metrics: dict[str, float] = Field(default={}, description="Metrics that the script reported.")


class SnapshotStatus(ObservedModel):
    """The state from which a restart would resume."""

    step: int | None = Field(
        default=None, description="Step of the newest snapshot by ddpjob_trainer."
    )
    skipped: int | None = Field(
        default=None,
        description="Snapshots skipped since the previous one because writing took too long.",
    )
    files_synced_at: datetime | None = Field(
        default=None,
        description="Time of the last safe replica of the script's own files (snapshot.files).",
    )


class WarningStatus(ObservedModel):
    """A problem that impairs the job but does not end it."""

    reason: str = Field(description="Reason in one CamelCase word, as in the event.")
    message: str = Field(description="Problem and remedy.")
    worker: str = Field(default="", description="Worker with the problem, if it is of one worker.")
    since: datetime = Field(description="Time when the problem was first reported.")
    ongoing: bool = Field(
        default=True, description="True while the problem lasts; false for an incident."
    )
    count: int = Field(default=1, description="Number of workers with this problem.")


class HistoryEntry(ObservedModel):
    """One of the last memberships, and the incident that led to it."""

    membership: str = Field(description="Identity of the membership: term.boot.n.")
    cause: str = Field(description="Cause: started, lost, failed, left or joined.")
    message: str = Field(
        default="", description="Workers that joined, left, were lost or failed before it."
    )
    ended: tuple[str, ...] = Field(
        default=(),
        description="Members whose pods ended, with the reasons; the next entry follows from them.",
    )
    since: datetime = Field(description="Time when the membership was formed.")
    workers: int = Field(description="Number of workers.")
    world_size: int = Field(description="Number of processes.")
    stall_seconds: float | None = Field(
        default=None,
        description="Seconds without a step: from the last step before it, or else from its"
        " formation, to its first step.",
    )
    first_step: int | None = Field(default=None, description="First step that was reported.")
    resumed_step: int | None = Field(
        default=None, description="Step that the processes resumed from."
    )
    repeated_steps: int | None = Field(
        default=None, description="Steps that ran again because the snapshot was older."
    )


class SilentWorkerStatus(ObservedModel):
    """A worker that has joined, and that sends nothing to the rendezvous service any more."""

    name: str = Field(description="Name of the worker.")
    since: datetime = Field(description="Time when the operator first observed the silence.")


class WorkerFailures(ObservedModel):
    """Workers of one slot that ended by their own doing, one after the other."""

    group: str = Field(description="Group of the slot.")
    index: int = Field(description="Index of the slot.")
    worker: str = Field(description="Name of the last one.")
    count: int = Field(description="Number of workers in a row; each doubles the pause.")
    spent: int | None = Field(
        default=None,
        description="Number of them that counts against maxRestarts.application. Defaults to count.",
    )
    times: tuple[datetime, ...] = Field(
        default=(), description="With failurePolicy.windowSeconds: times of those that count."
    )
    reason: str = Field(description="Reason of the last end, in one CamelCase word.")
    exit_code: int | None = Field(default=None, description="Exit code of the last one.")
    at: datetime = Field(description="Time when the last end was observed.")
    retry_at: datetime = Field(description="Time from which the last one is replaced.")
    tail: str = Field(
        default="",
        description="Last words of the pod, as the kubelet reports them. Of the last five slots.",
    )


class NodeFailures(ObservedModel):
    """Failures of the job on one node: pods that ended by their own doing, and processes."""

    node: str = Field(description="Name of the node.")
    count: int = Field(description="Number of these failures.")
    at: datetime = Field(description="Time when the last end was observed.")
    process_failed_at: datetime | None = Field(
        default=None,
        description="Time of the last failure of a process that is counted; its pod runs on.",
    )
    workers: tuple[str, ...] = Field(
        default=(),
        description="Workers that still run and whose processes failed there. Once the node is "
        "avoided, they move to other nodes.",
    )
    avoided: bool = Field(default=False, description="True if new pods of the job avoid the node.")


class RendezvousFailures(ObservedModel):
    """Rendezvous pods that the operator replaced because they did not work."""

    term: int = Field(description="Term of the last one.")
    count: int = Field(description="Number of pods in a row; each doubles the patience.")
    message: str = Field(description="Why the last one was replaced.")
    node: str = Field(default="", description="Its node, if it is lost: the next pod avoids it.")


class GroupStatus(ObservedModel):
    """One group of workers."""

    name: str = Field(description="Name of the group.")
    replicas: int = Field(description="Desired number of workers.")
    scheduled: int = Field(description="Number of workers that have a node.")
    ready: int = Field(description="Number of workers that run.")


class DDPJobStatus(ObservedModel):
    """The last observation of the operator, and the counters for its decisions."""

    observed_generation: int = Field(
        default=0, description="Generation of the spec that the operator last acted on."
    )
    state: str = Field(default="Pending", description="The conditions in one word.")
    message: str = Field(default="", description="Explanation of the state for people.")
    conditions: tuple[Condition, ...] = Field(
        default=(),
        description="Running, Resizing, Suspended, Stalled, Complete, Failed."
        " Running is always present once the operator has seen the job; the others if they hold"
        " or have a message.",
    )
    start_time: datetime | None = Field(
        default=None, description="Time when the job was started or resumed."
    )
    completion_time: datetime | None = Field(
        default=None, description="Time when the job completed or failed."
    )
    agent_image: str = Field(
        default="",
        description="Image of the agent in all pods of the job. Renewed when no pod is left.",
    )
    rendezvous_term: int = Field(
        default=0, description="Counts rendezvous services. Written before a service is created."
    )
    observed_rendezvous_term: int = Field(
        default=0,
        description="Last term whose service was observed. Only that service may form memberships.",
    )
    rendezvous_failures: RendezvousFailures | None = Field(
        default=None,
        description="Rendezvous pods in a row that were replaced because they did not work."
        " Absent once a pod has worked for ten minutes.",
    )
    worker_failures: tuple[WorkerFailures, ...] = Field(
        default=(),
        description="Slots whose workers ended by their own doing within the last ten minutes.",
    )
    node_failures: tuple[NodeFailures, ...] = Field(
        default=(),
        description="With failurePolicy.avoidNodes: nodes on which pods or processes of workers failed,"
        " up to 50.",
    )
    silent_workers: tuple[SilentWorkerStatus, ...] = Field(
        default=(),
        description="Workers whose pods run, but which send nothing to the rendezvous service."
        " They are replaced after elastic.orphanSeconds and 15 s.",
    )
    replace_after: datetime | None = Field(
        default=None, description="Time when workers that ended before they joined are replaced."
    )
    membership: MembershipStatus | None = Field(
        default=None, description="The workers that train, or trained last, together."
    )
    history: tuple[HistoryEntry, ...] = Field(
        default=(), description="The last 20 memberships, oldest first."
    )
    restarts: RestartsStatus = Field(default=RestartsStatus(), description="Restarts so far.")
    warnings: tuple[WarningStatus, ...] = Field(
        default=(), description="Problems that impair the job, and the last incidents."
    )
    progress: ProgressStatus | None = Field(default=None, description="Progress of the training.")
    snapshot: SnapshotStatus | None = Field(default=None, description="The newest snapshot.")
    groups: tuple[GroupStatus, ...] = Field(default=(), description="Each group of workers.")
    ready: str = Field(
        default="",
        description="Workers of all groups: running/wanted, as 2/4; - after the end of the job.",
    )
    replicas: int = Field(default=0, description="Workers of the main group, for autoscalers.")
    selector: str = Field(default="", description="Label selector of the main group.")

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form without empty texts, lists and mappings, which state nothing."""
        found: dict[str, Any] = _without_empty(super().to_json())
        return found


def _without_empty(value: Any) -> Any:
    if isinstance(value, dict):
        fields = ((name, _without_empty(field)) for name, field in value.items())
        return {name: field for name, field in fields if field not in ("", [], {})}
    return [_without_empty(each) for each in value] if isinstance(value, list) else value
