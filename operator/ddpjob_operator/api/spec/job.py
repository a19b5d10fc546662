"""The DDPJob custom resource: the one source of its fields, defaults, rules and documentation.

The CRD is generated from these models and their RULES. `errors` translates validation errors into
the terms of a job.
May not: act on a job, or know an observation.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal, Self

from annotated_types import MaxLen
from pydantic import Field, ValidationInfo, model_validator

from ddpjob_operator.api import cel, constants
from ddpjob_operator.api.base import Model, ObservedModel
from ddpjob_operator.api.problem import InvalidError
from ddpjob_operator.api.rule import Rule
from ddpjob_operator.api.spec.failure_policy import FailurePolicy
from ddpjob_operator.api.spec.fields import (
    GPU_RESOURCE,
    MAX_GROUPS,
    MAX_NAME,
    Count,
    Elastic,
    Flag,
    Network,
    Positive,
    Replicas,
    Scheduling,
    SnapshotSpec,
    Text,
)
from ddpjob_operator.api.spec.pinned_fields import pinned_rules
from ddpjob_operator.api.spec.pod.pod_template import build_template
from ddpjob_operator.api.spec.rendezvous_pod import RendezvousPod
from ddpjob_operator.api.spec.rules import SPEC_RULES
from ddpjob_operator.api.spec.sagemaker import SageMaker
from ddpjob_operator.api.spec.worker_groups import ExtraWorkerGroup, Group, WorkerFields, resolve
from ddpjob_operator.api.status import DDPJobStatus
from ddpjob_protocol.messages.control import Policy


class DDPJobSpec(WorkerFields):
    """The desired state of a job; the spec itself holds the main group of workers."""

    RULES = SPEC_RULES

    min_replicas: Replicas | None = Field(
        default=None,
        description="Minimum number of workers, from any group, with which the job runs. The minimum "
        "of each extra group is added. Defaults to 1, or to 0 if the main group has no workers.",
    )
    gpu_resource: Text = Field(
        default=GPU_RESOURCE, description="Resource that gpusPerWorker counts."
    )
    extra_worker_groups: Annotated[tuple[ExtraWorkerGroup, ...], MaxLen(MAX_GROUPS)] = Field(
        default=(), description="Further groups of workers."
    )
    elastic: Elastic = Field(default=Elastic(), description="Rules for changes of the membership.")
    snapshot: SnapshotSpec = Field(
        default=SnapshotSpec(), description="Storage of the training state."
    )
    sagemaker: SageMaker | None = Field(
        default=None, description="Settings for scripts that were written for SageMaker."
    )
    failure_policy: FailurePolicy = Field(
        default=FailurePolicy(), description="Limits of restarts after failures."
    )
    launcher: Literal["torchrun", "python", "mpi"] = Field(
        default="torchrun",
        description="Launcher of the processes. torchrun: the command must run torchrun. python: the "
        "command is the process, or starts its own processes. mpi: one worker runs mpirun, which "
        "starts the processes of all workers.",
    )
    network: Network = Field(default=Network(), description="Network settings of the processes.")
    scheduling: Scheduling = Field(default=Scheduling(), description="Placement of the workers.")
    rendezvous: RendezvousPod = Field(
        default=RendezvousPod(), description="Resources and nodes of the rendezvous pod."
    )
    suspend: Flag = Field(default=False, description="If true, the job pauses.")
    active_deadline_seconds: Positive | None = Field(
        default=None, description="Seconds after which a job that still runs fails."
    )
    ttl_seconds_after_finished: Count | None = Field(
        default=None,
        description="Seconds after which a finished job is deleted, with its kept pods. By default, "
        "it stays.",
    )
    keep_pods: Literal["Failed", "All", "Never"] = Field(
        default="Failed",
        description="Workers that are kept, with their logs, after the job has finished: Failed, "
        "All or Never.",
    )

    @property
    def paused(self) -> bool:
        """True if the job is suspended or scaled to zero."""
        return self.suspend or not any(group.replicas for group in self.groups())

    @property
    def least(self) -> int:
        """Minimum number of workers of the main group."""
        return min(1, self.replicas) if self.min_replicas is None else self.min_replicas

    @property
    def minimum(self) -> int:
        """Minimum number of workers over all groups."""
        return max(1, sum(group.minimum for group in self.groups()))

    @property
    def resolved_launcher(self) -> str:
        """The launcher, from `sagemaker` or from `launcher`."""
        return self.launcher if self.sagemaker is None else self.sagemaker.launcher

    @property
    def entry_point(self) -> tuple[str, ...]:
        """The command as the user gave it, with its arguments."""
        return (*(self.command or ()), *(self.args or ()))

    def groups(self) -> tuple[Group, ...]:
        """Return all groups, the main group first. A pass asks for them many times."""
        return self._groups

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy, whose groups are resolved again."""
        copied = super().model_copy(update=update, deep=deep)
        copied.__dict__.pop("_groups", None)
        return copied

    @functools.cached_property
    def _groups(self) -> tuple[Group, ...]:
        main = self
        if self.sagemaker is not None and self.entry_point:
            whole = self.sagemaker.command(self.entry_point)
            main = self.model_copy(update={"command": whole, "args": None})
        pod = build_template(main)
        own = resolve(main, main, constants.MAIN_GROUP, self.gpu_resource, pod)
        extra = (
            resolve(main, group, group.name, self.gpu_resource, pod)
            for group in self.extra_worker_groups
        )
        return (own, *extra)


FOREGROUND, ORPHAN = "foregroundDeletion", "orphan"  # finalizers of the garbage collector


class Metadata(ObservedModel):
    """The part of a Kubernetes object's metadata that matters here."""

    name: str = Field(description="Name of the job, unique in its namespace.")
    namespace: Text = Field(default="default", description="Namespace of the job.")
    uid: str = Field(default="", description="Identity that the API server assigned.")
    generation: int = Field(default=1, description="Counts changes of the spec.")
    creation_timestamp: datetime | None = Field(
        default=None, description="Time when the job was created."
    )
    labels: dict[str, str] = Field(default={}, description="Labels, also of the job's pods.")
    annotations: dict[str, str] = Field(
        default={}, description="Annotations, also of the job's pods."
    )
    deletion_timestamp: datetime | None = Field(
        default=None, description="Set while the job is being deleted."
    )
    finalizers: tuple[str, ...] = Field(
        default=(), description="What must happen before the job is deleted."
    )

    @property
    def is_held(self) -> bool:
        """True if another controller delays the deletion, and the job's objects need not stay.

        In a foreground deletion the garbage collector deletes them; orphans stay.
        """
        others = set(self.finalizers) - {FOREGROUND}
        return self.deletion_timestamp is not None and bool(others) and ORPHAN not in others


WITHOUT_RULES = (
    "without_rules"  # key of pydantic's context: read a job that another version accepted
)
JOB_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")  # a Service is named after the job
NAME, MAX_NAMES = "self.metadata.name", constants.MAX_NAMES
GROUP_NAMES = f"(['{constants.MAIN_GROUP}'] + {cel.groups('self.spec')}.map(g, g.name))"
LONG_GROUP_NAME = f"{GROUP_NAMES}.filter(n, size({NAME}) + size(n) > {MAX_NAMES})[0]"


def _long_group_name(job: DDPJob) -> str:
    names = (group.name for group in job.spec.groups())
    return next((n for n in names if len(job.metadata.name) + len(n) > MAX_NAMES), "")


# The API server allows no rules about the name in the schema of metadata. Rules of the whole object
# are checked at each write of the status, too: an older job must stay writable under stricter ones.
NAME_RULES = (
    Rule(
        field="metadata.name",
        message="'%s' is not a valid name of a job; begin with a lower-case letter, continue with "
        f"lower-case letters, digits and '-', with a letter or digit last, {MAX_NAME} at most",
        values=((lambda job: job.metadata.name, NAME),),
        check=lambda job: JOB_NAME.fullmatch(job.metadata.name),
        cel=cel.matches(NAME, JOB_NAME),
        unless="true",
    ),
    Rule(
        field="metadata.name",
        message=f"is too long: with '%s', the name of a group, it has more than {MAX_NAMES} "
        f"characters; shorten them to {MAX_NAMES} together",
        values=((_long_group_name, LONG_GROUP_NAME),),
        check=lambda job: not _long_group_name(job),
        cel=f"{GROUP_NAMES}.all(n, size({NAME}) + size(n) <= {MAX_NAMES})",
        unless="self.?status.?state.hasValue()",  # oldSelf would cost too much
    ),
)


class DDPJob(Model):
    """An elastic PyTorch DDP job."""

    RULES = (*NAME_RULES, *pinned_rules(DDPJobSpec))

    api_version: Literal["ddpjob.io/v1alpha1"] = Field(
        default="ddpjob.io/v1alpha1", description="Version of this resource."
    )
    kind: Literal["DDPJob"] = Field(default="DDPJob", description="Always DDPJob.")
    metadata: Metadata = Field(description="Name and namespace of the job.")
    spec: DDPJobSpec = Field(description="Desired state of the job.")
    status: DDPJobStatus = Field(default=DDPJobStatus(), description="Observed state of the job.")

    def policy(self) -> Policy:
        """Return the numbers that the rendezvous service uses for its decisions."""
        spec = self.spec
        policy = Policy(
            minimum=spec.minimum,
            minimums=tuple(
                (constants.worker_group(self.metadata.name, group.name), group.min_replicas)
                for group in spec.extra_worker_groups
                if group.min_replicas
            ),
            startup_wait=spec.elastic.startup_wait_seconds,
            settle=spec.elastic.settle_seconds,
            join_policy=spec.elastic.join_policy,
            min_between_joins=spec.elastic.min_seconds_between_joins,
            max_join_wait=spec.elastic.max_join_wait_seconds,
            max_failures=spec.failure_policy.max_restarts.application,
            max_losses=spec.failure_policy.max_restarts.infrastructure,
            window=spec.failure_policy.window_seconds,
            on_hang=spec.failure_policy.on_hang,
            rules=tuple(rule.to_protocol() for rule in spec.failure_policy.rules),
            backoff=spec.failure_policy.backoff_seconds,
            files=bool(spec.snapshot.files),
        )
        silence = spec.elastic.heartbeat_seconds
        if silence is None:
            return policy
        return dataclasses.replace(
            policy,
            heartbeat_deadline=silence,
            live_deadline=silence,
            host_deadline=min(policy.host_deadline, silence),
            live_host_deadline=min(policy.live_host_deadline, silence),
            process_deadline=silence,
            live_process_deadline=silence,
        )

    @model_validator(mode="after")
    def _check(self, info: ValidationInfo) -> Self:
        if info.context and info.context.get(WITHOUT_RULES):
            return self
        if problems := [*self.find_problems()]:
            raise InvalidError(problems)
        return self
