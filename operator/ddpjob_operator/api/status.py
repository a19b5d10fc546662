"""The status of a DDPJob: what was observed, never what is hoped.

May not: decide anything.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from ddpjob_operator.api.base import ObservedModel


class Condition(ObservedModel):
    """One thing that is true of a job or not, since when and why."""

    type: str = Field(description="What the condition is about.")
    status: Literal["True", "False", "Unknown"] = Field(description="Whether it holds.")
    reason: str = Field(description="Why, in one CamelCase word.")
    message: str = Field(default="", description="Why, in a sentence.")
    observed_generation: int = Field(default=0, description="Generation of the spec it is about.")
    last_transition_time: datetime | None = Field(
        default=None, description="When the status last changed."
    )


class MembershipStatus(ObservedModel):
    """The workers that train together."""

    id: str = Field(description="Identity: term.boot.n; a higher one overtakes a lower one.")
    workers: tuple[str, ...] = Field(description="Their names in the order of ranks.")
    world_size: int = Field(description="Number of processes.")
    since: datetime = Field(description="When it was formed.")
    cause: str = Field(description="Why it was formed: started, lost, failed, left or joined.")


class RestartsStatus(ObservedModel):
    """Restarts so far; a change of size is not a restart."""

    application: int = Field(default=0, description="Because a process failed.")
    infrastructure: int = Field(default=0, description="Because a worker was lost.")
    total: int = Field(default=0, description="All of them.")
    repeated_steps: int = Field(
        default=0, description="Steps that were done again, since the snapshot was older."
    )


class ProgressStatus(ObservedModel):
    """How far the training is."""

    step: int | None = Field(default=None, description="Last step that was reported.")
    total_steps: int | None = Field(default=None, description="Steps until the end.")
    metrics: dict[str, float] = Field(default={}, description="What the script reported.")


class SnapshotStatus(ObservedModel):
    """What a restart would go on from."""

    step: int | None = Field(
        default=None, description="Step of the newest snapshot by ddpjob_trainer."
    )
    skipped: int | None = Field(
        default=None,
        description="Left out since the one before: writing takes longer than the steps between.",
    )
    problem: str | None = Field(
        default=None, description="What makes saving worse than it could be, and what to do."
    )
    files_synced_at: datetime | None = Field(
        default=None,
        description="When a copy of the script's own files (snapshot.files) was last safe.",
    )
    files_problem: str | None = Field(
        default=None, description="What keeps a worker from keeping copies."
    )


class GroupStatus(ObservedModel):
    """One group of workers."""

    name: str = Field(description="Name of the group.")
    replicas: int = Field(description="Workers wanted.")
    scheduled: int = Field(description="Workers that have a node.")
    ready: int = Field(description="Workers that run.")


class DDPJobStatus(ObservedModel):
    """What the operator last observed, and the counters that it decides by."""

    observed_generation: int = Field(default=0, description="Generation of the spec acted on.")
    state: str = Field(default="Pending", description="The conditions in one word.")
    conditions: tuple[Condition, ...] = Field(
        default=(), description="Running, Resizing, Suspended, Stalled, Complete, Failed."
    )
    start_time: datetime | None = Field(
        default=None, description="When the job was started, or resumed."
    )
    completion_time: datetime | None = Field(
        default=None, description="When the job completed or failed."
    )
    rendezvous_term: int = Field(
        default=0, description="Counts rendezvous services; written before one is created."
    )
    observed_rendezvous_term: int = Field(
        default=0,
        description="Last term whose service was seen; only such a service may form memberships.",
    )
    replace_after: datetime | None = Field(
        default=None, description="Workers that end before they join are replaced then."
    )
    membership: MembershipStatus | None = Field(
        default=None, description="The workers that train, or trained last, together."
    )
    restarts: RestartsStatus = Field(default=RestartsStatus(), description="Restarts so far.")
    overdue_workers: tuple[str, ...] = Field(
        default=(),
        description="The last workers that were ended before their last step: too short a grace.",
    )
    stuck: tuple[str, ...] = Field(
        default=(),
        description="The last processes that hung in a broken collective, and their end.",
    )
    unreachable: tuple[str, ...] = Field(
        default=(), description="Which workers of the membership cannot reach which others."
    )
    progress: ProgressStatus | None = Field(default=None, description="How far the training is.")
    snapshot: SnapshotStatus | None = Field(default=None, description="The newest snapshot.")
    warned: tuple[str, ...] = Field(
        default=(), description="Reasons of warnings that are told once."
    )
    groups: tuple[GroupStatus, ...] = Field(default=(), description="Each group of workers.")
    ready: str = Field(default="", description="Workers of all groups: running/wanted, as 2/4.")
    replicas: int = Field(default=0, description="Workers of the main group, for autoscalers.")
    selector: str = Field(default="", description="Label selector of the main group.")
